"""An etcd of three members, which are killed, hang, and come back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler
from threading import Thread

import pytest
from msgspec.structs import replace
from tests.etcd.servers import Etcd
from tests.harness.cluster import wait_until
from tests.harness.http_thread import HttpThread
from tests.harness.limits import patience
from tests.harness.proxy import Proxy
from tests.harness.register_contract import TOKEN, state_of, stored

from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.etcd.backend import EtcdBackend, revision_of
from rallypoint.register.etcd.gateway import Gateway
from rallypoint.register.etcd.parameters import read_etcd


def test_a_register_is_used_by_any_member_that_lives(three: Etcd) -> None:
    """Also when the connection that is kept was to etcd's leader, which is killed."""
    config = read_etcd(three.endpoints, {}, str)
    leader = three.leader
    first = replace(config, endpoints=(config.endpoints[leader], *config.endpoints))
    backend = EtcdBackend(first, "lives", TOKEN)
    stored(backend, b"0")
    three.kill(leader)
    again(partial(stored, backend, b"1"))
    assert state_of(EtcdBackend(config, "lives", TOKEN)) == b"1"
    three.start(leader)
    three.wait_ready()


def test_a_member_that_does_not_answer_is_left_for_another(three: Etcd) -> None:
    config = read_etcd(three.endpoints, {}, str)
    backend = EtcdBackend(config, "silent", TOKEN, attempt_s=0.5)
    stored(backend, b"0")
    three.pause(0)
    try:
        again(partial(stored, backend, b"1"))
        assert state_of(backend) == b"1"
    finally:
        three.resume(0)


def test_without_a_quorum_nothing_is_stored_and_the_line_says_so(three: Etcd) -> None:
    backend = EtcdBackend(read_etcd(three.endpoints, {}, str), "quorum", TOKEN, attempt_s=0.5)
    stored(backend, b"0")
    found = backend.get_state()
    assert found is not None
    leader = three.leader
    gone = (leader, (leader + 1) % 3)
    for number in gone:
        three.kill(number)
    says = "etcd has no leader: most of its members are away"
    wait_until(lambda: says in why(backend), f"{says!r} instead of {why(backend)!r}", 20)
    with pytest.raises(RendezvousConnectionError):
        backend.set_state(b"1", found[1])
    with pytest.raises(RendezvousConnectionError):
        backend.try_writing()
    for number in gone:
        three.start(number)
    three.wait_ready()
    # It was not known whether that was stored: the record says.
    again(partial(stored, backend, b"2"))
    assert state_of(backend) == b"2"


def test_a_watch_ends_when_its_member_is_cut_off_from_the_others(three: Etcd) -> None:
    """It would be silent, though the key has changed."""
    config = read_etcd(three.endpoints, {}, str)
    leader = three.leader
    gateway = Gateway(replace(config, endpoints=config.endpoints[leader : leader + 1]))
    now = revision_of(gateway.call("/v3/kv/range", {"key": "AA=="}))

    def watch() -> None:
        with pytest.raises(RendezvousConnectionError):
            gateway.watch("/cut", now + 1, 600.0)

    watching = Thread(target=watch)
    watching.start()
    gone = [number for number in range(3) if number != leader]
    for number in gone:
        three.kill(number)
    watching.join(patience(30))
    assert not watching.is_alive()
    for number in gone:
        three.start(number)
    three.wait_ready()


class Leaderless(BaseHTTPRequestHandler):
    """A member that says in a watch, as 3.5.16 does and 3.4 does not, that it has no leader."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in (
            b'{"result":{"header":{"revision":"1"},"created":true}}\n',
            b'{"error":{"code":14,"message":"etcdserver: no leader"}}\n',
        ):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        return


def test_a_member_that_says_in_a_watch_that_it_has_no_leader_is_left_for_another() -> None:
    """As a change it would be looked at again and again."""
    with HttpThread(Leaderless) as server:
        gateway = Gateway(read_etcd(f"127.0.0.1:{server.port}", {}, str))
        with pytest.raises(RendezvousConnectionError, match="etcdserver: no leader"):
            gateway.watch("/cut", 2, 600.0)


def why(backend: EtcdBackend) -> str:
    """Nothing can be read; empty: it can."""
    try:
        backend.get_state()
    except RendezvousConnectionError as error:
        return str(error)
    return ""


def again(call: Callable[[], None]) -> None:
    """As a leader does: what has failed is tried again."""
    for _ in range(int(patience(20))):
        try:
            call()
        except RendezvousConnectionError:
            continue
        return
    raise AssertionError("etcd did not come back")


def test_members_of_two_clusters_are_not_one_register(three: Etcd, etcd: Etcd) -> None:
    """Whoever has such a list has mixed up two of them."""
    with Proxy(three.ports[0]) as proxy:
        config = read_etcd(f"127.0.0.1:{proxy.port},{etcd.endpoints}", {}, str)
        backend = EtcdBackend(config, "clusters")
        stored(backend, b"x")
        proxy.cut()
        with pytest.raises(RendezvousConnectionError, match="of another cluster than the members"):
            backend.get_state()
