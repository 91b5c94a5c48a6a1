"""The register in etcd: the contract of a backend, members that come and go, what is left behind.
By a real etcd."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.etcd.servers import Etcd
from tests.harness.cluster import free_port, wait_until
from tests.harness.engines import etcd_at, etcd_engine
from tests.harness.limits import patience
from tests.harness.narrowed import known
from tests.harness.proxy import Proxy
from tests.harness.register_contract import ServedRegisterContract, state_of, stored

from rallypoint.errors import RecordError
from rallypoint.register.etcd.backend import EtcdBackend, key_of
from rallypoint.register.etcd.gateway import EtcdMember, Gateway
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.etcd.store import sweep
from rallypoint.register.record import RegisterWatch
from rallypoint.wire.death_notice import RegisterAt


class TestEtcd(ServedRegisterContract):
    """One member."""

    @pytest.fixture(autouse=True)
    def _place(self, etcd: Etcd, config: EtcdConfig) -> None:
        self.etcd, self.config = etcd, config
        nowhere = f"127.0.0.1:{free_port()}"
        self.partly_away = replace(config, endpoints=(nowhere, *config.endpoints))
        self.away = replace(config, endpoints=(nowhere,))

    def open(self, run_id: str, token: bytes | None) -> EtcdBackend:
        return EtcdBackend(self.config, run_id, token)

    def open_away(self) -> EtcdBackend:
        return EtcdBackend(self.away, self.run_id)

    def places(self) -> tuple[RegisterAt, RegisterAt]:
        """Return the place of a member that is away before one that is not, and of the first."""
        return etcd_at(self.partly_away), etcd_at(self.away)

    def contents(self) -> dict[str, bytes]:
        return self.etcd.keys(self.config.prefix)


@pytest.mark.parametrize("run_id", ["..", "a/b", "x" * 300, "nœud", "\n", " ", "\0"])
def test_any_run_id_has_a_key_of_its_own(etcd: Etcd, config: EtcdConfig, run_id: str) -> None:
    stored(EtcdBackend(config, run_id), b"x")
    assert state_of(EtcdBackend(config, run_id)) == b"x"
    assert EtcdBackend(config, run_id + "-").get_state() is None
    (key,) = etcd.keys(config.prefix)
    assert key.startswith(f"{config.prefix}/jobs/rallypoint-")


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"somebody's", "was not written by Rallypoint"), (b"", "is corrupt")],
    ids=["foreign", "empty"],
)
def test_what_lies_there_that_is_no_register_is_named_and_left(
    etcd: Etcd, config: EtcdConfig, data: bytes, says: str
) -> None:
    key = key_of(config.prefix, "job")
    etcd.put(key, data)
    for call in (EtcdBackend(config, "job").get_state, lambda: stored_new(config)):
        with pytest.raises(RecordError, match=says) as raised:
            call()
        assert key in str(raised.value)
        assert "another etcd_prefix" in str(raised.value)
    assert etcd.keys(config.prefix) == {key: data}


def stored_new(config: EtcdConfig) -> None:
    EtcdBackend(config, "job").set_state(b"x")


def test_L1_who_looks_for_a_leader_is_woken_by_a_watch(config: EtcdConfig) -> None:
    """Also when it has looked meanwhile for another reason; and nothing is left of that."""
    backend, other = EtcdBackend(config, "job"), EtcdBackend(config, "job")
    stored(backend, b"1")

    async def look() -> None:
        watch = RegisterWatch(backend)
        try:
            for number in range(3):
                found = known(backend.get_state())
                await watch.wait(found[1], 0.1)
                storing = threading.Thread(target=stored, args=(other, b"%d" % number))
                storing.start()
                async with asyncio.timeout(patience(30)):
                    await watch.wait(found[1], 600)
                storing.join()
                assert backend.get_state() != found
        finally:
            watch.close()

    before = threading.active_count()
    asyncio.run(look())
    wait_until(lambda: threading.active_count() == before, "the thread to end")


def test_a_wait_after_a_compaction_lasts(etcd: Etcd, config: EtcdConfig) -> None:
    """A watch from a revision that is compacted would end at once, again and again."""
    backend, other = EtcdBackend(config, "job"), EtcdBackend(config, "other")
    stored(backend, b"x")
    found = known(backend.get_state())
    for number in range(3):
        stored(other, b"%d" % number)
    now = etcd.call("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
    etcd.call("/v3/kv/compaction", {"revision": now})
    assert not backend.wait_for_change(found[1], 0.2)


# Retention


def test_registers_that_have_not_changed_for_the_time_are_removed(
    etcd: Etcd, config: EtcdConfig
) -> None:
    gateway = Gateway(config)
    names = [f"job{number}" for number in range(7)]
    for name in names:
        stored(EtcdBackend(config, name), b"x")
    foreign = f"{config.prefix}/jobs/somebody's"
    etcd.put(foreign, b"x")
    assert sweep(gateway, config.prefix) == 0
    (lease,) = mark_of(etcd, config)
    assert sweep(gateway, config.prefix) == 0, "the week has not ended"
    stored(EtcdBackend(config, "job3"), b"y")
    etcd.call("/v3/lease/revoke", {"ID": lease})
    assert sweep(gateway, config.prefix, page=2) == 6
    assert mark_of(etcd, config) != [lease]
    left = {key_of(config.prefix, "job3"), foreign, f"{config.prefix}/mark"}
    assert etcd.keys(config.prefix).keys() == left
    assert state_of(EtcdBackend(config, "job0")) is None


def mark_of(etcd: Etcd, config: EtcdConfig) -> list[str]:
    """The lease that ends with the week."""
    mark = etcd.keys(config.prefix)[f"{config.prefix}/mark"]
    return mark.decode().split()[1:]


def test_two_nodes_that_sweep_at_once_leave_one_mark_and_one_lease(
    etcd: Etcd, config: EtcdConfig
) -> None:
    before = set(leases(etcd))
    gates = threading.Barrier(4)

    def at_once() -> None:
        gates.wait()
        etcd_engine(config, "job").sweep()

    sweeping = [threading.Thread(target=at_once) for _ in range(4)]
    for thread in sweeping:
        thread.start()
    for thread in sweeping:
        thread.join()
    assert mark_of(etcd, config) == list(set(leases(etcd)) - before)


def leases(etcd: Etcd) -> list[str]:
    answer = etcd.call("/v3/lease/leases", {})
    return [lease["ID"] for lease in answer.get("leases", [])]


def test_one_connection_is_used_again_and_again(config: EtcdConfig) -> None:
    """None of the answers leaves it unusable, as one would that was not read to its end."""
    member = EtcdMember(config.endpoints[0], None)
    for body in ({"key": "AA=="}, {"key": "!"}, {"key": "AA=="}):
        member.post("/v3/kv/range", body, "", 5.0)
        assert not member.has_repeated


# Answers that are lost


@pytest.fixture
def lossy(etcd: Etcd, config: EtcdConfig) -> Iterator[tuple[Proxy, EtcdBackend]]:
    """A member whose answers can be lost, and is reached again at its own address then."""
    with Proxy(etcd.ports[0]) as proxy:
        backend = EtcdBackend(
            replace(config, endpoints=(f"127.0.0.1:{proxy.port}", etcd.endpoints)),
            "job",
            attempt_s=0.3,
        )
        stored(backend, b"0")
        yield proxy, backend


def test_a_version_whose_answer_was_lost_is_known_again(
    lossy: tuple[Proxy, EtcdBackend],
) -> None:
    """A member that is asked a second time says that the key has changed: by ourselves."""
    proxy, backend = lossy
    found = known(backend.get_state())
    proxy.mute()
    after = known(backend.set_state(b"1", found[1]))
    assert after[2]
    assert backend.get_state() == (b"1", after[1])


def test_of_a_version_whose_answer_was_lost_and_that_was_replaced_nothing_is_said(
    config: EtcdConfig, lossy: tuple[Proxy, EtcdBackend]
) -> None:
    """It was stored: who is told that it was not would do the same again."""
    proxy, backend = lossy
    found = known(backend.get_state())
    other = EtcdBackend(config, "job")

    def follow() -> None:
        assert other.wait_for_change(found[1], 60)
        stored(other, b"2")

    following = threading.Thread(target=follow)
    following.start()
    proxy.mute()
    assert backend.set_state(b"1", found[1]) is None
    following.join()
    assert state_of(backend) == b"2"
