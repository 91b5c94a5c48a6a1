"""Answers that no etcd and no API server would give: each is one error, and the call may be made
again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.harness.engines import etcd_engine, kubernetes_engine
from tests.harness.http_thread import HttpThread
from tests.harness.resolver import nobody_asked

from rallypoint.elastic.etcd.client import EtcdClient
from rallypoint.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
from rallypoint.elastic.rendezvous.etcd_store import EtcdStore
from rallypoint.errors import (
    RallypointError,
    RendezvousConnectionError,
    StoreConnectionError,
    UsageError,
)
from rallypoint.register.etcd.backend import EtcdBackend
from rallypoint.register.etcd.gateway import Gateway
from rallypoint.register.etcd.parameters import read_etcd
from rallypoint.register.kubernetes.backend import KubernetesRendezvousBackend
from rallypoint.register.kubernetes.parameters import KubernetesConfig, kubernetes_config

TOKEN = b"a token of the job"
HEADER = b'"header":{"revision":"1"}'
NOT_UNDERSTOOD = {
    "open brackets": b'{"kind":' + b"[" * 100_000,
    "closed brackets": b'{"kind":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "an array": b"[]",
    "null": b"null",
    "long numbers": b'{"header":{"revision":"' + b"9" * 5000 + b'"},"kind":' + b"9" * 6000 + b"}",
    "no number": b'{"header":{"revision":NaN},"kind":"x"}',
    "surrogate": b'{"kind":"\\ud800","message":"\\ud800\\u001b[2J","header":{"cluster_id":"1"}}',
    "no UTF-8": b'{"kind":"\xff"}',
    "UTF-16": '{"kind":"x"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"kind":"x"}',
    "cut": b'{"kind":"x"',
    "nothing": b"",
}
OF_ETCD = {
    "list as header": b'{"header":[1],"kvs":[]}',
    "no header": b"{}",
    "revision": b'{"header":{"revision":"1e3"}}',
    "numbers as pairs": b"{" + HEADER + b',"kvs":[1,2],"responses":[1]}',
    "text as pairs": b"{" + HEADER + b',"kvs":"x","responses":"x"}',
    "a pair without a key": b"{" + HEADER + b',"kvs":[{}],"responses":[{}]}',
    "more of nothing": b"{" + HEADER + b',"more":true,"succeeded":"yes"}',
    "no responses": b"{" + HEADER + b',"succeeded":true,"kvs":7}',
    "no range": b"{" + HEADER + b',"responses":[{"response_range":[]}],"kvs":{}}',
    "no base64": b"{"
    + HEADER
    + b',"kvs":[{"key":"%","mod_revision":"1"}],"responses":[{"response_range":{'
    + HEADER
    + b',"kvs":[{"key":"AA","mod_revision":"1"}]}}]}',
}
OF_KUBERNETES = {
    "list as metadata": b'{"kind":"x","metadata":[],"items":[]}',
    "numbers as items": b'{"kind":"x","metadata":{},"items":[1]}',
    "text as items": b'{"kind":"x","metadata":{},"items":"x"}',
    "an item without metadata": b'{"kind":"x","metadata":{},"items":[{}]}',
    "a number as version": b'{"kind":"x","metadata":{"uid":"u","resourceVersion":7}}',
    "a list as message": b'{"kind":"Status","message":[[]]}',
}


class Server(HttpThread):
    """Answers each request with `answer` and `status`."""

    def __init__(self) -> None:
        self.answer, self.status = b"", 200
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(server.answer)))
                self.end_headers()
                self.wfile.write(server.answer)

            def do_GET(self) -> None:
                self.do_POST()

            def do_PUT(self) -> None:
                self.do_POST()

            def do_DELETE(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                return

        super().__init__(Handler)


@pytest.fixture(autouse=True, scope="module")
def no_names() -> Iterator[None]:
    with nobody_asked():
        yield


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        yield serving


@pytest.fixture
def pod(server: Server, tmp_path: Path) -> KubernetesConfig:
    for name, text in (("token", "a token"), ("namespace", "default")):
        (tmp_path / name).write_text(text)
    return kubernetes_config("", f"http://127.0.0.1:{server.port}", str(tmp_path))


def may_be_made_again(call: Callable[[], Any]) -> None:
    """A person is not asked to mend anything."""
    with pytest.raises(RallypointError) as raised:
        call()
    assert isinstance(raised.value, RendezvousConnectionError | StoreConnectionError)
    assert not isinstance(raised.value, UsageError)
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("name", [*NOT_UNDERSTOOD, *OF_ETCD])
@pytest.mark.parametrize("status", [200, 500])
def test_F10_an_answer_that_is_not_etcds_is_one_error(
    server: Server, name: str, status: int
) -> None:
    server.answer, server.status = (NOT_UNDERSTOOD | OF_ETCD)[name], status
    where = f"127.0.0.1:{server.port}"
    config = read_etcd(where, {}, os.path.abspath)
    backend = EtcdBackend(config, "job", TOKEN, attempt_s=20)
    for call in (
        backend.get_state,
        lambda: backend.set_state(b"1"),
        backend.try_writing,
        etcd_engine(config, "job").prepare,
        lambda: Gateway(config).watch("key", 2, 20.0) or backend.get_state(),
    ):
        may_be_made_again(call)
    assert backend.wait_for_change(None, 0.01)
    registers = etcd_engine(config)
    assert registers.changed() == []
    registers.sweep()
    client = EtcdClient(where)
    store = EtcdStore(client, "/store", 0.01)
    for ask in (
        lambda: store.get("key"),
        lambda: store.add("key", 1),
        store.list_keys,
        lambda: store.queue_pop("key", block=False),
    ):
        may_be_made_again(ask)
    shared = EtcdRendezvousBackend(client, "job")
    for share in (
        lambda: shared.set_state(b"1"),
        lambda: shared.get_beats(["node"]),
        lambda: shared.join_requests_after(0),
        lambda: shared.post_join_request(b"1"),
    ):
        may_be_made_again(share)


@pytest.mark.parametrize("name", [*NOT_UNDERSTOOD, *OF_KUBERNETES])
@pytest.mark.parametrize("status", [200, 500])
def test_F10_an_answer_that_is_not_an_api_servers_is_one_error(
    server: Server, pod: KubernetesConfig, name: str, status: int
) -> None:
    server.answer, server.status = (NOT_UNDERSTOOD | OF_KUBERNETES)[name], status
    backend = KubernetesRendezvousBackend(pod, "job", TOKEN)
    calls: list[Callable[[], Any]] = [lambda: backend.set_state(b"1")]
    if name not in OF_KUBERNETES or status == 500:
        calls += [backend.get_state, backend.try_writing, kubernetes_engine(pod, "job").prepare]
    for call in calls:
        may_be_made_again(call)
    assert backend.wait_for_change(None, 0.01) in (True, False)
    registers = kubernetes_engine(pod)
    assert registers.changed() == []
    registers.sweep()


def test_F10_a_message_of_a_server_is_one_line_of_a_limited_length(
    server: Server, pod: KubernetesConfig
) -> None:
    said = b"\\u001b[2J\\n" + b"x" * 100_000
    server.answer, server.status = b'{"kind":"Status","message":"' + said + b'","code":3}', 500
    etcd = EtcdBackend(read_etcd(f"127.0.0.1:{server.port}", {}, os.path.abspath), "job", TOKEN)
    for backend in (etcd, KubernetesRendezvousBackend(pod, "job", TOKEN)):
        with pytest.raises(RendezvousConnectionError) as raised:
            backend.get_state()
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 1000


def test_F10_pages_that_would_not_end_are_not_read_for_ever(
    server: Server, pod: KubernetesConfig
) -> None:
    """The same key again and again, and a list of Kubernetes that always continues."""
    pair = b'{"key":"AA==","mod_revision":"1"}'
    server.answer = b"{" + HEADER + b',"more":true,"kvs":[' + pair + b"]}"
    where = f"127.0.0.1:{server.port}"
    registers = etcd_engine(read_etcd(where, {}, os.path.abspath))
    assert registers.changed() == []
    may_be_made_again(EtcdStore(EtcdClient(where), "/store").list_keys)
    server.answer = b'{"kind":"List","metadata":{"continue":"x"},"items":[]}'
    assert kubernetes_engine(pod).changed() == []
