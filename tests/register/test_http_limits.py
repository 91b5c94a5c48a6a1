"""The limits of a call over HTTP: of its whole time, and of what a server may send."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness.dripping_server import DrippingServer
from tests.harness.resolver import nobody_asked

from rallypoint.agent.environ import ProgressReceiver
from rallypoint.agent.telemetry import trainer_requests
from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.etcd.gateway import Gateway
from rallypoint.register.etcd.parameters import read_etcd
from rallypoint.register.http import HttpConnection, HttpError, HttpRequest, ServerKind
from rallypoint.register.kubernetes.api_server import NONE, ApiServer
from rallypoint.register.kubernetes.parameters import kubernetes_config

LIMIT_S = 0.3
LONG_S = 600.0
KIND = ServerKind("no server", "plain", "by TLS")
GET = HttpRequest("GET", "/", None, {})
WHOLE = ("status line", "head", "continue", "body", "body without length")
CHUNKS = ("chunk size", "chunk extension", "chunks", "trailer")


@pytest.fixture(autouse=True, scope="module")
def no_names() -> Iterator[None]:
    with nobody_asked():
        yield


@pytest.fixture
def account(tmp_path: Path) -> str:
    for name, text in (("token", "a token"), ("namespace", "default")):
        (tmp_path / name).write_text(text)
    return str(tmp_path)


def connected(port: int, tls: ssl.SSLContext | None = None) -> closing[HttpConnection]:
    return closing(HttpConnection(f"127.0.0.1:{port}", tls, KIND))


@pytest.mark.parametrize("kind", [*WHOLE, *CHUNKS])
def test_F10_the_limit_of_a_call_is_for_all_of_its_answer(kind: str) -> None:
    with DrippingServer(kind) as server, connected(server.port) as connection:
        with pytest.raises(HttpError, match=r"no answer within 0\.3 s"):
            connection.ask(GET, LIMIT_S)
        assert not connection.is_open
        assert server.wait_hung_up()


def test_F10_the_limit_of_a_call_is_for_the_handshake_of_tls_too() -> None:
    context = ssl.create_default_context()
    with DrippingServer("TLS") as server, connected(server.port, context) as connection:
        with pytest.raises(HttpError, match=r"no answer within 0\.3 s"):
            connection.ask(GET, LIMIT_S)
        assert server.wait_hung_up()


def test_F10_the_limit_of_a_call_is_for_the_sending_of_a_request_too() -> None:
    """The server reads a little now and then: each piece that is sent is progress."""
    has_ended = threading.Event()

    def serve(listener: socket.socket) -> None:
        taken, _ = listener.accept()
        with taken:
            while not has_ended.wait(0.02):
                taken.recv(1024)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        large = HttpRequest("POST", "/", bytes(32 << 20), {})
        connection = HttpConnection(f"127.0.0.1:{listener.getsockname()[1]}", None, KIND)
        with closing(connection), pytest.raises(HttpError, match=r"no answer within 0\.3 s"):
            connection.ask(large, LIMIT_S)
        has_ended.set()
        serving.join()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("head", "its answer is not understood"),
        ("continue", "the head of its answer has more than 128 KiB"),
        ("body without length", "it answers with more than 1 MiB"),
        ("chunks", "its answer has more than 2048 KiB"),
        ("chunk extension", "its answer is not understood"),
        ("trailer", "its answer has more than 2048 KiB"),
    ],
)
def test_F10_what_a_server_sends_is_limited_in_size(
    monkeypatch: pytest.MonkeyPatch, kind: str, says: str
) -> None:
    """However fast it sends. Lines of http.client have 64 KiB at most."""
    monkeypatch.setattr("rallypoint.register.http.MAX_ANSWER", 1 << 20)
    server = DrippingServer(kind, 0.0, 10_000, at_once=1000)
    with server, connected(server.port) as connection:
        with pytest.raises(HttpError) as raised:
            connection.ask(GET, LONG_S)
        assert says in str(raised.value)
        assert not raised.value.is_lasting
        assert server.wait_hung_up()


@pytest.mark.parametrize("kind", ["body", "chunks"])
def test_F10_an_answer_that_is_cut_off_may_be_asked_for_again(kind: str) -> None:
    with DrippingServer(kind, 0.0, 3) as server, connected(server.port) as connection:
        with pytest.raises(HttpError, match="its answer is cut off") as raised:
            connection.ask(GET, LONG_S)
        assert not raised.value.is_lasting
        assert not server.wait_hung_up()


def test_F10_a_token_that_http_does_not_allow_is_not_shown() -> None:
    with DrippingServer("head") as server, connected(server.port) as connection:
        headers = {"Authorization": "Bearer secret\nX: y"}
        with pytest.raises(HttpError, match="see the token") as raised:
            connection.ask(GET._replace(headers=headers), LONG_S)
        assert "secret" not in str(raised.value)


# The clients


def post(port: int) -> None:
    origin = f"http://127.0.0.1:{port}"
    receiver = ProgressReceiver(f"{origin}/status", "", "", origin)
    trainer_requests.post(receiver, b"{}", LIMIT_S)


def etcd(port: int) -> Gateway:
    return Gateway(read_etcd(f"127.0.0.1:{port}", {}, os.path.abspath), LIMIT_S)


def api_server(port: int, account: str) -> ApiServer:
    return ApiServer(kubernetes_config("", f"http://127.0.0.1:{port}", account), LIMIT_S)


@pytest.mark.parametrize("kind", ["head", "continue", "body", "chunk size"])
def test_F10_a_member_of_etcd_that_drips_is_left_within_its_limit(kind: str) -> None:
    """The member is asked once more whether etcd has a leader."""
    with DrippingServer(kind) as server:
        with pytest.raises(RendezvousConnectionError, match=r"no answer within 0\.3 s"):
            etcd(server.port).call("/v3/kv/range", {"key": "AA=="})
        assert server.wait_hung_up(2)


def test_F10_the_limit_at_a_member_is_for_the_login_too() -> None:
    with DrippingServer("body") as server:
        conf = {"user": "user", "password": "password"}
        config = read_etcd(f"127.0.0.1:{server.port}", conf, os.path.abspath)
        with pytest.raises(RendezvousConnectionError, match=r"no answer within 0\.3 s"):
            Gateway(config, LIMIT_S).call("/v3/kv/range", {"key": "AA=="})
        assert server.wait_hung_up(2)


@pytest.mark.parametrize("kind", ["head", "continue", "chunk size", "second line"])
def test_F10_a_watch_of_etcd_that_drips_ends_long_before_its_time(kind: str) -> None:
    """A size of a chunk is no line yet: it is limited by the time of the whole watch."""
    seconds = LIMIT_S if kind == "chunk size" else LONG_S
    with DrippingServer(kind) as server:
        gateway = etcd(server.port)
        if kind == "chunk size":
            assert not gateway.watch("key", 2, seconds)
        else:
            with pytest.raises(RendezvousConnectionError, match=r"no answer within 0\.3 s"):
                gateway.watch("key", 2, seconds)
        assert server.wait_hung_up()


@pytest.mark.parametrize("kind", ["head", "continue", "body", "chunk size"])
def test_F10_an_api_server_that_drips_is_left_within_its_limit(kind: str, account: str) -> None:
    with DrippingServer(kind) as server:
        with pytest.raises(RendezvousConnectionError, match=r"no answer within 0\.\d+ s"):
            api_server(server.port, account).call("GET", "name")
        assert server.wait_hung_up()


@pytest.mark.parametrize("kind", ["head", "continue", "second line"])
def test_F10_a_watch_of_an_api_server_that_drips_ends_long_before_its_time(
    kind: str, account: str
) -> None:
    with DrippingServer(kind) as server:
        with pytest.raises(RendezvousConnectionError, match=r"no answer within 0\.3 s"):
            list(api_server(server.port, account).watch(LONG_S, NONE))
        assert server.wait_hung_up()


@pytest.mark.parametrize("kind", ["head", "continue", "body"])
def test_F10_a_receiver_of_progress_that_drips_is_left(kind: str) -> None:
    with DrippingServer(kind) as server:
        with pytest.raises(trainer_requests.NotPostedError, match=r"no answer within 0\.3 s"):
            post(server.port)
        assert server.wait_hung_up()
