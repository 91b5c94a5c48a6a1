"""The register in etcd: the contract of a backend, members that come and go, what is left behind.
By a real etcd."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.etcd.servers import Etcd, state_of, stored
from tests.harness.cluster import free_port, wait_until
from tests.harness.engines import etcd_at, etcd_engine
from tests.harness.limits import patience
from tests.harness.proxy import Proxy

from rallypoint.core.job_state import new_job
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.takeover.record import Leader, LeadRecord, Process, record_of
from rallypoint.errors import RecordError, RendezvousConnectionError, RendezvousStateError
from rallypoint.register.contract import RendezvousBackend
from rallypoint.register.etcd.backend import MAX_STATE, EtcdBackend, key_of
from rallypoint.register.etcd.gateway import EtcdMember, Gateway
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.etcd.store import sweep
from rallypoint.register.record import RegisterWatch, encode
from rallypoint.register.release import release
from rallypoint.testing.backend_contract import RendezvousBackendContract
from rallypoint.wire.death_notice import ReleaseNotice

TOKEN = b"a token of the job"


class TestEtcd(RendezvousBackendContract):
    """One member."""

    @pytest.fixture(autouse=True)
    def _place(self, config: EtcdConfig) -> None:
        self.config = config

    def make_backend(self) -> RendezvousBackend:
        return EtcdBackend(self.config, "job", TOKEN)

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return EtcdBackend(self.config, "job2", TOKEN)


def test_L2_an_heir_tries_whether_etcd_takes_what_it_writes(etcd: Etcd, config: EtcdConfig) -> None:
    """Nothing is left of that."""
    backend = EtcdBackend(config, "job")
    backend.try_writing()
    assert etcd.keys(config.prefix) == {}
    stored(backend, b"x")
    found = backend.get_state()
    backend.try_writing()
    assert backend.get_state() == found
    away = replace(config, endpoints=(f"127.0.0.1:{free_port()}",))
    with pytest.raises(RendezvousConnectionError):
        EtcdBackend(away, "job").try_writing()


def test_a_state_that_is_too_large_for_a_request_is_refused(config: EtcdConfig) -> None:
    backend = EtcdBackend(config, "job")
    with pytest.raises(RendezvousStateError, match="takes 1048576 bytes"):
        backend.set_state(b"x" * (MAX_STATE + 1))
    assert backend.get_state() is None


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


def test_another_token_s_register_can_not_be_read(config: EtcdConfig) -> None:
    stored(EtcdBackend(config, "job", TOKEN), b"x")
    for token in (None, b"another"):
        with pytest.raises(RecordError, match="start all nodes with the same token"):
            EtcdBackend(config, "job", token).get_state()


def test_a_wait_in_another_thread_can_be_ended(config: EtcdConfig) -> None:
    backend = EtcdBackend(config, "job")
    stored(backend, b"x")
    found = backend.get_state()
    assert found is not None
    waiting = threading.Thread(target=backend.wait_for_change, args=(found[1], 600.0))
    waiting.start()
    while waiting.is_alive():
        backend.stop_waiting()
        waiting.join(0.05)


def test_L1_who_looks_for_a_leader_is_woken_by_a_watch(config: EtcdConfig) -> None:
    """Also when it has looked meanwhile for another reason; and nothing is left of that."""
    backend, other = EtcdBackend(config, "job"), EtcdBackend(config, "job")
    stored(backend, b"1")

    async def look() -> None:
        watch = RegisterWatch(backend)
        try:
            for number in range(3):
                found = backend.get_state()
                assert found is not None
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
    found = backend.get_state()
    assert found is not None
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
    found = backend.get_state()
    assert found is not None
    proxy.mute()
    after = backend.set_state(b"1", found[1])
    assert after is not None
    assert after[2]
    assert backend.get_state() == (b"1", after[1])


def test_of_a_version_whose_answer_was_lost_and_that_was_replaced_nothing_is_said(
    config: EtcdConfig, lossy: tuple[Proxy, EtcdBackend]
) -> None:
    """It was stored: who is told that it was not would do the same again."""
    proxy, backend = lossy
    found = backend.get_state()
    assert found is not None
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


# A leader that is dead


def test_L6_the_record_of_a_dead_leader_is_marked_and_no_other(config: EtcdConfig) -> None:
    leader = Leader(("10.0.0.1:29400",), Process("boot", 1, 10), has_workers=True)
    job = record_of(new_job(SharedSettings("job", 1, 2), 5))
    led = LeadRecord(1, Epoch(3, 7), leader, 12, job)
    register = EtcdBackend(config, "job", TOKEN)
    stored(register, encode(led))
    for epoch in (Epoch(2, 7), Epoch(3, 8)):
        assert not release(ReleaseNotice(etcd_at(config), "job", TOKEN, epoch), 1.0)
    assert state_of(register) == encode(led)
    silent = replace(config, endpoints=(f"127.0.0.1:{free_port()}", *config.endpoints))
    assert release(ReleaseNotice(etcd_at(silent), "job", TOKEN, led.epoch), 1.0)
    assert state_of(register) == encode(replace(led, beat=13, is_vacant=True, is_dead=True))
    gone = replace(config, endpoints=silent.endpoints[:1])
    with pytest.raises(RendezvousConnectionError):
        release(ReleaseNotice(etcd_at(gone), "job", TOKEN, led.epoch), 0.2)
