"""What programs use of etcd as with torch: a rendezvous between peers, a store, and a server of
one's own. By a real etcd. (What any store does is in the conformance suite, which has this one.)"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.etcd.servers import Etcd, encoded, program
from tests.harness.cluster import free_port, is_listening, wait_until
from tests.harness.narrowed import known
from tests.harness.proxy import Proxy
from tests.harness.register_contract import stored

from rallypoint.elastic.etcd.client import EtcdClient
from rallypoint.elastic.etcd.lease import CommonLease
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from rallypoint.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
from rallypoint.elastic.rendezvous.etcd_server import EtcdServer
from rallypoint.elastic.rendezvous.etcd_store import EtcdStore
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.errors import (
    InfrastructureError,
    ParameterError,
    RendezvousConnectionError,
    StoreConnectionError,
    StoreError,
)
from rallypoint.register.contract import RendezvousBackend
from rallypoint.testing.backend_contract import RendezvousBackendContract

BINARY = "TORCHELASTIC_ETCD_BINARY_PATH"


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Of this test alone."""
    return f"/{request.node.name}"


@pytest.fixture
def client(etcd: Etcd) -> EtcdClient:
    return EtcdClient(etcd.endpoints)


class TestEtcdRendezvous(RendezvousBackendContract):
    @pytest.fixture(autouse=True)
    def _place(self, client: EtcdClient, prefix: str) -> None:
        self.client, self.prefix = client, prefix

    def make_backend(self) -> RendezvousBackend:
        return EtcdRendezvousBackend(self.client, "job", self.prefix)

    def make_backend_of_another_job(self) -> RendezvousBackend:
        return EtcdRendezvousBackend(self.client, "job2", self.prefix)


# Rendezvous


def both(make: Callable[[], DynamicRendezvousHandler]) -> list[DynamicRendezvousHandler]:
    """Two nodes, in one round; what one has written the other reads."""
    handlers = [make(), make()]
    with ThreadPoolExecutor(2) as pool:
        worlds = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
    assert sorted(world.rank for world in worlds) == [0, 1]
    worlds[0].store.set("from", "one")
    assert worlds[1].store.get("from") == b"one"
    return handlers


def test_two_nodes_meet_and_nothing_is_left_after_the_ttl(
    etcd: Etcd, client: EtcdClient, prefix: str
) -> None:
    store = EtcdStore(client, f"{prefix}/store")

    def make() -> DynamicRendezvousHandler:
        backend = EtcdRendezvousBackend(client, "job", f"{prefix}/state", ttl=1)
        return DynamicRendezvousHandler.from_backend(
            "job", store, backend, 2, 2, local_addr="127.0.0.1", keep_alive_interval=0.2
        )

    first, second = both(make)
    second.leave()
    wait_until(lambda: first.num_nodes_waiting() == 1, "the other one to leave")
    first.shutdown()
    wait_until(lambda: not etcd.keys(f"{prefix}/state"), "the end of the lease")
    store.clear()
    assert etcd.keys(prefix) == {}


def test_handlers_that_are_asked_for_by_name_meet_by_etcd(etcd: Etcd, prefix: str) -> None:
    def make() -> DynamicRendezvousHandler:
        params = RendezvousParameters(
            "etcd", etcd.endpoints, "job", 2, 2, "127.0.0.1", etcd_prefix=prefix, insecure=True
        )
        handler = get_rendezvous_handler(params)
        assert isinstance(handler, DynamicRendezvousHandler)
        return handler

    for handler in both(make):
        handler.shutdown()
    of_lease = etcd.call("/v3/lease/leases", {}).get("leases", [])
    keys = len(etcd.keys(prefix))
    held = [
        len(etcd.call("/v3/lease/timetolive", {"ID": each["ID"], "keys": True}).get("keys", []))
        for each in of_lease
    ]
    assert keys in held, "all of a run is on one lease"


def test_a_lease_is_renewed_by_the_ttl_of_the_node_that_made_it(
    client: EtcdClient, prefix: str
) -> None:
    first, second = (CommonLease(client, prefix, ttl) for ttl in (30.0, 7200.0))
    assert first.number() == second.number()
    assert second.lasts_s == 30.0
    client.call("/v3/lease/revoke", {"ID": str(first.number())})


@pytest.mark.fault
def test_heartbeats_keep_what_a_run_has(etcd: Etcd, client: EtcdClient, prefix: str) -> None:
    """Of any of its nodes: the one that has written the state may be gone."""
    writer, node, other = (EtcdRendezvousBackend(client, "job", prefix, ttl=1) for _ in range(3))
    stored(writer, b"x")
    (lease,) = {
        kv["lease"] for kv in etcd.call("/v3/kv/range", whole(prefix))["kvs"] if "lease" in kv
    }
    granted = int(etcd.call("/v3/lease/timetolive", {"ID": lease})["grantedTTL"])
    beats = threading.Event()

    def beat() -> None:
        number = 0
        while not beats.wait(0.1):
            number += 1
            node.set_beat("node", number)

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        wait_until(lambda: other.get_beats(["node"])[0] >= 10 * (granted + 1), "some beats")
        assert known(writer.get_state())[0] == b"x"
    finally:
        beats.set()
        beating.join()
    wait_until(lambda: not etcd.keys(prefix), "the end of the lease")
    assert writer.get_state() is None
    stored(writer, b"y")


def whole(prefix: str) -> dict[str, str]:
    return {"key": encoded(prefix), "range_end": encoded(prefix + "0")}


def test_a_run_whose_lease_somebody_has_revoked_begins_anew(
    etcd: Etcd, client: EtcdClient, prefix: str
) -> None:
    """Its state, its heartbeats and its store are gone with the lease, and may be put again."""
    backend = EtcdRendezvousBackend(client, "job", f"{prefix}/state", ttl=600)
    store = EtcdStore(client, f"{prefix}/store", lease=backend.lease)
    for _ in range(2):
        stored(backend, b"x")
        backend.set_beat("node", 1)
        store.set("k", "v")
        etcd.call("/v3/lease/revoke", {"ID": str(backend.lease.number())})
        assert backend.get_state() is None
        assert not store.check(["k"])
    with pytest.raises(StoreConnectionError, match="etcd has ended the lease"):
        store.set("k", "after")  # What was there before is gone: who waits for it is to hear so.
    store.set("k", "again")


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf")])
def test_a_ttl_that_is_none_is_refused(client: EtcdClient, ttl: float) -> None:
    with pytest.raises(ParameterError, match=f"ttl={ttl!r}: needs"):
        EtcdRendezvousBackend(client, "job", ttl=ttl)


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(ParameterError, match="pasword='x': is not an option"):
        EtcdClient("127.0.0.1", pasword="x")
    with pytest.raises(ParameterError, match="needs the endpoints of etcd's members"):
        EtcdClient(" ")
    with pytest.raises(ParameterError, match="prefix=store: needs a path"):
        EtcdStore(EtcdClient("127.0.0.1"), "store")


# The store


def test_those_who_wait_ask_etcd_nothing_until_it_wakes_them(
    etcd: Etcd, client: EtcdClient, prefix: str
) -> None:
    def count(name: str) -> int:
        with urlopen(f"http://{etcd.endpoints}/metrics", timeout=5) as answer:
            found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    watchers, reads = "etcd_debugging_mvcc_watcher_total", "etcd_mvcc_range_total"
    store = EtcdStore(client, prefix)
    before, before_reads = count(watchers), count(reads)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(store.get, "k") for _ in range(8)]
        wait_until(lambda: count(watchers) == before + 8, "eight watches")
        for number in range(50):
            store.set(f"other {number}", "x")
        store.set("k", "v")
        assert [each.result() for each in waiting] == [b"v"] * 8
    # Each reads once before and once after; etcd counts some of that twice.
    assert count(reads) - before_reads <= 8 * 4


def test_what_was_done_when_its_answer_was_lost_is_done_once_or_an_error(
    etcd: Etcd, client: EtcdClient, prefix: str
) -> None:
    """A second member is asked the same, and would do it again."""
    calls: dict[str, Callable[[EtcdStore], object]] = {
        "add": lambda store: store.add("k", 1),
        "delete_key": lambda store: store.delete_key("k"),
        "queue_push": lambda store: store.queue_push("k", "item"),
        "barrier": lambda store: store.barrier("k", 2, 0),
    }
    with Proxy(etcd.ports[0]) as proxy, ThreadPoolExecutor(len(calls)) as pool:
        stores = {
            name: EtcdStore(
                EtcdClient(f"127.0.0.1:{proxy.port},{etcd.endpoints}"), f"{prefix}/{name}"
            )
            for name in calls
        }
        for store in stores.values():
            store.set("k", "1")
        proxy.mute()
        outcomes = list(pool.map(outcome, calls.values(), stores.values()))
    unknown = "an answer was lost: it is unknown whether the operation was done"
    assert outcomes == [2, unknown, None, unknown]
    assert EtcdStore(client, f"{prefix}/add").get("k") == b"2"
    assert EtcdStore(client, f"{prefix}/queue_push").queue_len("k") == 1
    assert not EtcdStore(client, f"{prefix}/delete_key").check(["k"])


def outcome(call: Callable[[EtcdStore], object], store: EtcdStore) -> object:
    try:
        return call(store)
    except StoreConnectionError as error:
        return error.reason


def test_a_member_that_was_never_reached_has_done_nothing(etcd: Etcd, prefix: str) -> None:
    """So the next one can be asked for anything."""
    away = f"127.0.0.1:{free_port()}"
    store = EtcdStore(EtcdClient(f"{away},{etcd.endpoints}"), prefix)
    store.barrier("b", 1)
    assert not store.delete_key("k")


def test_a_store_whose_etcd_is_away_says_so(prefix: str) -> None:
    store = EtcdStore(EtcdClient(f"127.0.0.1:{free_port()}"), prefix, timeout=0.3)
    for call in (lambda: store.get("k"), lambda: store.set("k", "v"), store.list_keys):
        with pytest.raises(StoreConnectionError, match="Connection refused"):
            call()


def test_a_value_that_is_too_large_for_a_request_is_refused(
    client: EtcdClient, prefix: str
) -> None:
    store = EtcdStore(client, prefix)
    largest = b"x" * (1 << 20)
    store.set("k", largest)
    assert store.get("k") == largest
    for change in (store.set, store.append):
        with pytest.raises(StoreError, match="takes 1048576; use a TCPStore"):
            change("k", largest + b"x")


@pytest.mark.fault
def test_many_large_values_are_set_and_read(client: EtcdClient, prefix: str) -> None:
    """In parts that etcd takes."""
    store, largest = EtcdStore(client, prefix), b"x" * (1 << 20)
    keys = [f"k{number}" for number in range(40)]
    store.multi_set(keys, [largest] * 40)
    assert store.multi_get(keys) == [largest] * 40


# The server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    program()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_server_has_an_etcd_and_leaves_nothing(folder: Path) -> None:
    server = EtcdServer()
    with server:
        EtcdStore(server.get_client(), "/x").set("k", "v")
        assert server.get_endpoint() == f"{server.get_host()}:{server.get_port()}"
        assert len(list(folder.iterdir())) == 1
        with pytest.raises(ParameterError, match="runs already"):
            server.start()
    assert list(folder.iterdir()) == []
    with pytest.raises(RendezvousConnectionError, match="Connection refused"):
        server.get_client().call("/v3/kv/range", {"key": "AA=="})
    server.stop()


def test_a_server_with_a_directory_keeps_its_data(folder: Path) -> None:
    server = EtcdServer(folder / "data")
    for value in (None, b"1"):
        server.start()
        store = EtcdStore(server.get_client(), "/x")
        assert (store.get("k") if store.check(["k"]) else None) == value
        store.set("k", "1")
        server.stop()
    assert [path.name for path in folder.iterdir()] == ["data"]


OWNER = """
import os, sys, time
from rallypoint.elastic.rendezvous.etcd_server import EtcdServer
server = EtcdServer()
server.start()
if os.fork():
    print(server.get_port(), flush=True)
time.sleep(600)
"""


def test_a_server_ends_with_its_owner_however_that_ends(folder: Path) -> None:
    """Also if a child of the owner lives on, and has what the owner had open."""
    environ = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        assert is_listening(port)
        assert len(list(folder.iterdir())) == 1
        owner.kill()
        wait_until(lambda: not is_listening(port), "the end of etcd")
        wait_until(lambda: not list(folder.iterdir()), "the directory to be removed")
        os.killpg(owner.pid, signal.SIGKILL)


def test_without_a_program_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BINARY, "/none")
    with pytest.raises(ParameterError, match=f"{BINARY}=/none: is not a program"):
        EtcdServer().start()
    monkeypatch.delenv(BINARY)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ParameterError, match=f"install one .*, or give .* in {BINARY}"):
        EtcdServer().start()


def script(folder: Path, text: str) -> str:
    """In place of etcd."""
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_a_server_that_does_not_come_to_run_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BINARY, script(folder, "echo first >&2; echo 'no space' >&2; exit 1"))
    with pytest.raises(InfrastructureError, match="/etcd did not start: no space"):
        EtcdServer().start()
    monkeypatch.setenv(BINARY, script(folder, "exec sleep 600"))
    with pytest.raises(InfrastructureError, match="it does not answer in time"):
        EtcdServer().start(timeout=0.2)
    monkeypatch.setenv(BINARY, script(folder, "echo said >&2"))
    with (folder / "log").open("wb") as log, pytest.raises(InfrastructureError):
        EtcdServer().start(stderr=log)
    assert (folder / "log").read_text() == "said\n"
    assert sorted(path.name for path in folder.iterdir()) == ["etcd", "log"]


def test_a_server_whose_port_was_taken_takes_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = f"if mkdir {folder}/tried; then echo 'address already in use'; exit 1; fi"
    monkeypatch.setenv(BINARY, script(folder, f'{first}; exec {program()} "$@"'))
    with pytest.raises(InfrastructureError, match="already in use"):
        EtcdServer().start(num_retries=0)
    (folder / "tried").rmdir()
    with EtcdServer() as server:
        EtcdStore(server.get_client(), "/x").set("k", "v")
