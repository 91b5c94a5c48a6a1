"""F8: who may take part. Nothing here does I/O: two state machines and the bytes between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.errors import (
    AccessError,
    ExitClass,
    ForeignPeerError,
    ProtocolError,
    RallypointError,
    UsageError,
    VersionMismatchError,
)
from rallypoint.wire.handshake import (
    MAX_HANDSHAKE_BYTES,
    PROTOCOL_VERSION,
    ClientHandshake,
    Established,
    ServerHandshake,
)

TOKEN = b"the token of this job, 32 bytes."
SERVER_ID = b"0123456789abcdef"
CLIENT_NONCE = b"c" * 32
SERVER_NONCE = b"s" * 32


def _server(
    token: bytes | None = TOKEN,
    *,
    nonce: bytes = SERVER_NONCE,
    insecure: bool = False,
    version: int = PROTOCOL_VERSION,
) -> ServerHandshake:
    return ServerHandshake(SERVER_ID, lambda run_id: token, nonce, insecure, version)


def _client(
    token: bytes | None = TOKEN,
    *,
    nonce: bytes = CLIENT_NONCE,
    run_id: str = "job",
    version: int = PROTOCOL_VERSION,
) -> ClientHandshake:
    return ClientHandshake(run_id, token, nonce, version)


@dataclass
class Talk:
    """What two sides said to each other, and how it ended for each."""

    to_server: bytes = b""
    to_client: bytes = b""
    client_error: RallypointError | None = None
    server_error: RallypointError | None = None
    cuts: list[int] = field(default_factory=list)

    def pieces(self, data: bytes) -> list[bytes]:
        edges = [0, *sorted(cut % (len(data) + 1) for cut in self.cuts), len(data)]
        return [data[a:b] for a, b in pairwise(edges)]


def _talk(
    client: ClientHandshake,
    server: ServerHandshake,
    cuts: list[int] | None = None,
    tamper: Callable[[str, bytes], bytes] = lambda direction, data: data,
) -> Talk:
    """Carry bytes to and fro until nobody has anything to say."""
    talk = Talk(cuts=cuts or [])
    upward, downward = tamper("up", client.hello()), b""
    while upward or downward:
        talk.to_server += upward
        said = b""
        for piece in talk.pieces(upward):
            if talk.server_error is None and server.result is None:
                try:
                    said += server.feed(piece)
                except RallypointError as error:
                    talk.server_error = error
                    said += server.last_words
        upward, downward = b"", tamper("down", said)
        talk.to_client += downward
        for piece in talk.pieces(downward):
            if talk.client_error is None and client.result is None:
                try:
                    upward += client.feed(piece)
                except RallypointError as error:
                    talk.client_error = error
        upward, downward = tamper("up", upward), b""
    return talk


def _proof_of_a_server_with(token: bytes) -> bytes:
    client, server = _client(token), _server(token)
    return server.feed(client.feed(server.feed(client.hello())))[-32:]


def _is_one_line(error: RallypointError | None) -> bool:
    return error is not None and str(error).isprintable() and len(str(error)) < 700


@given(
    cuts=st.lists(st.integers(min_value=0, max_value=1000), max_size=30),
    run_id=st.text(min_size=1, max_size=60),
    token=st.sampled_from([TOKEN, None]),
)
def test_F8_both_sides_agree_under_any_segmentation(
    cuts: list[int], run_id: str, token: bytes | None
) -> None:
    client = _client(token, run_id=run_id)
    server = _server(token, insecure=token is None)
    talk = _talk(client, server, cuts)
    assert (talk.client_error, talk.server_error) == (None, None)
    assert isinstance(server.result, Established)
    assert server.result == client.result
    assert server.result.run_id == run_id
    assert server.result.server_id == SERVER_ID
    assert (server.result.keys is None) == (token is None)


def test_F8_each_job_and_each_connection_has_its_own_keys() -> None:
    seen = set()
    for client, server in (
        (_client(), _server()),
        (_client(nonce=b"d" * 32), _server()),
        (_client(), _server(nonce=b"t" * 32)),
        (_client(run_id="other"), _server()),
    ):
        _talk(client, server)
        assert server.result is not None
        assert server.result.keys is not None
        seen |= {server.result.keys.client_to_server, server.result.keys.server_to_client}
    assert len(seen) == 8


def test_F8_the_token_never_crosses_the_wire() -> None:
    talk = _talk(_client(), _server())
    assert TOKEN not in talk.to_server + talk.to_client
    assert TOKEN[:8] not in talk.to_server + talk.to_client


def test_F8_the_token_is_looked_up_by_run_id_and_only_for_a_complete_proof() -> None:
    asked: list[str] = []

    def lookup(run_id: str) -> bytes:
        asked.append(run_id)
        return TOKEN

    server = ServerHandshake(SERVER_ID, lookup, SERVER_NONCE, insecure=False)
    client = _client(run_id="a job")
    proof = client.feed(server.feed(client.hello()))
    server.feed(proof[:-1])
    assert asked == []
    server.feed(proof[-1:])
    assert asked == ["a job"]


def test_F8_what_follows_the_handshake_is_handed_on() -> None:
    client, server = _client(), _server()
    proof = client.feed(server.feed(client.hello()))
    welcome = server.feed(proof + b"first frame")
    assert server.result is not None
    assert server.result.leftover == b"first frame"
    big = bytes(10 * MAX_HANDSHAKE_BYTES)
    client.feed(welcome + big)
    assert client.result is not None
    assert client.result.leftover == big


@pytest.mark.parametrize("known", [b"another token of thirty-two bytes", None, b""])
def test_F8_a_wrong_token_is_refused_with_one_line_on_both_sides(known: bytes | None) -> None:
    client, server = _client(), _server(known)
    talk = _talk(client, server)
    for error in (talk.client_error, talk.server_error):
        assert isinstance(error, AccessError)
        assert error.exit_class is ExitClass.USAGE
        assert "wrong token for job 'job'" in str(error)
        assert "rallypoint token" in str(error)
        assert _is_one_line(error)
    assert client.result is None
    assert server.result is None


def test_F8_strangers_can_not_tell_an_unknown_job_from_a_wrong_token() -> None:
    unknown = _talk(_client(), _server(None))
    wrong = _talk(_client(), _server(b"another token of thirty-two bytes"))
    assert unknown.to_client == wrong.to_client


def test_F8_an_unknown_job_can_not_be_opened_with_what_the_server_sent() -> None:
    for guess in (SERVER_NONCE + SERVER_ID, SERVER_NONCE, SERVER_ID):
        server = _server(None)
        talk = _talk(_client(guess), server)
        assert isinstance(talk.server_error, AccessError)
        assert server.result is None


def test_F8_a_server_that_does_not_know_the_token_is_refused() -> None:
    """The client proves first, to anyone; the server's own proof must still hold."""
    for guess in (b"\0" * 32, _proof_of_a_server_with(b"a guess of thirty-two bytes, wrong")):
        client, impostor = _client(), _server()
        client.feed(impostor.feed(client.hello()))
        with pytest.raises(AccessError, match="could not prove"):
            client.feed(b"RLYP\x00\x01\x02" + guess)
        assert client.result is None


def test_F8_a_client_with_a_token_refuses_a_server_that_does_not_ask() -> None:
    client, server = _client(), _server(insecure=True)
    talk = _talk(client, server)
    assert isinstance(talk.client_error, AccessError)
    assert "running with --insecure" in str(talk.client_error)
    assert isinstance(talk.server_error, AccessError)
    assert "--insecure" in str(talk.server_error)
    assert _is_one_line(talk.client_error)
    assert _is_one_line(talk.server_error)
    assert len(talk.to_server) == len(client.hello()), "not even a proof is sent"


def test_F8_a_client_without_a_token_learns_how_to_get_one() -> None:
    client, server = _client(None), _server()
    talk = _talk(client, server)
    for error in (talk.client_error, talk.server_error):
        assert isinstance(error, AccessError)
        for way in (
            "rallypoint token",
            "~/.config/rallypoint/token",
            "RALLYPOINT_TOKEN",
            "--token-file",
        ):
            assert way in str(error)
        assert _is_one_line(error)
    assert server.result is None


def test_F8_nobody_in_the_middle_can_talk_a_client_down_to_no_token() -> None:
    def strip(direction: str, data: bytes) -> bytes:
        if direction == "up" and data.startswith(b"RLYP"):
            return data[:6] + b"\x00" + data[7:]  # hides "I have a token"
        if direction == "down" and data[:7] == b"RLYP\x00\x01\x01":
            return data[:7] + b"\x00" + data[8:]  # hides "I require a token"
        return data

    client, server = _client(), _server()
    talk = _talk(client, server, tamper=strip)
    assert isinstance(talk.client_error, AccessError)
    assert isinstance(talk.server_error, AccessError)
    assert client.result is None
    assert server.result is None


def test_F8_a_reflected_proof_does_not_open_the_door() -> None:
    """An attacker without the token lets one honest side answer the other's challenge."""
    client = _client()
    reflected = _server(nonce=CLIENT_NONCE)
    proof = client.feed(reflected.feed(client.hello()))
    client_again = _client()
    challenge = _server(nonce=CLIENT_NONCE).feed(client_again.hello())
    client_again.feed(challenge)
    with pytest.raises(AccessError, match="could not prove"):
        client_again.feed(b"RLYP\x00\x01\x02" + proof)


def test_F8_a_replayed_session_does_not_open_the_door() -> None:
    talk = _talk(_client(), _server())
    replayed = _server(nonce=b"n" * 32)
    with pytest.raises(AccessError, match="wrong token"):
        replayed.feed(talk.to_server)
    assert replayed.result is None
    fooled = _client(nonce=b"m" * 32)
    with pytest.raises(AccessError, match="could not prove"):
        fooled.feed(talk.to_client)
    assert fooled.result is None


@given(
    direction=st.sampled_from(["up", "down"]),
    position=st.integers(min_value=0, max_value=400),
    bit=st.integers(min_value=0, max_value=7),
)
def test_F8_no_flipped_bit_gets_through(direction: str, position: int, bit: int) -> None:
    """The two sides never both believe in a session whose bytes were altered on the way."""
    seen = {"up": 0, "down": 0}
    hit = False

    def flip(way: str, data: bytes) -> bytes:
        nonlocal hit
        start, seen[way] = seen[way], seen[way] + len(data)
        if way != direction or not start <= position < start + len(data):
            return data
        hit = True
        altered = bytearray(data)
        altered[position - start] ^= 1 << bit
        return bytes(altered)

    client, server = _client(), _server()
    _talk(client, server, tamper=flip)
    if hit:
        # Bits that mean nothing may change; what both sides derive from must be equal then.
        assert client.result is None or server.result == client.result


def test_R7_versions_that_differ_are_named_on_both_sides() -> None:
    client, server = _client(version=7), _server()
    talk = _talk(client, server)
    assert isinstance(talk.client_error, VersionMismatchError)
    assert isinstance(talk.server_error, VersionMismatchError)
    assert (talk.client_error.ours, talk.client_error.theirs) == (7, PROTOCOL_VERSION)
    assert (talk.server_error.ours, talk.server_error.theirs) == (PROTOCOL_VERSION, 7)
    assert _is_one_line(talk.client_error)
    assert "version 7" in str(talk.client_error)
    assert f"version {PROTOCOL_VERSION}" in str(talk.client_error)
    assert talk.client_error.exit_class is ExitClass.USAGE


@pytest.mark.parametrize(
    ("banner", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH"),
        (b"\x00\xce\xf7\x85\x3c", "TCPStore"),
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"R\x00", "it began with"),
        (b"\x1b[31mred", "it began with"),
    ],
)
def test_F8_a_peer_that_is_something_else_is_named(banner: bytes, hint: str) -> None:
    for side in (_client(), _server()):
        with pytest.raises(ForeignPeerError, match="speaks something else") as caught:
            side.feed(banner)
        assert hint in str(caught.value)
        assert _is_one_line(caught.value)
        assert side.last_words == b"", "a stranger's protocol is not answered in ours"
        with pytest.raises(ForeignPeerError):
            side.feed(b"more")


def test_F8_a_peer_that_hangs_up_or_says_nothing_has_an_error_too() -> None:
    error = _client().unfinished()
    assert isinstance(error, ForeignPeerError)
    assert _is_one_line(error)


def test_F8_a_refusal_is_made_safe_for_a_terminal() -> None:
    text = b"no\x1b[2Jroom\nfor \xff you\xe2\x80\xae"
    refusal = b"RLYP\x00\x01\x03" + len(text).to_bytes(2, "big") + text
    client = _client()
    assert client.feed(refusal[:-1]) == b"", "the whole line is waited for"
    with pytest.raises(AccessError) as caught:
        client.feed(refusal[-1:])
    assert "no?[2Jroom?for" in str(caught.value)
    assert _is_one_line(caught.value)


def test_F8_a_hostile_run_id_is_made_safe_for_the_coordinators_log() -> None:
    server = _server()
    hello = _client(run_id="a\n\x1b[2Jb").hello()
    server.feed(hello)
    with pytest.raises(AccessError) as caught:
        server.feed(b"x" * 32)
    assert "job 'a??[2Jb'" in str(caught.value)
    assert _is_one_line(caught.value)


def test_F8_a_refusal_too_long_is_not_waited_for() -> None:
    with pytest.raises(ProtocolError, match="refuses in 65535 bytes"):
        _client().feed(b"RLYP\x00\x01\x03\xff\xff")


@pytest.mark.parametrize(
    "hello",
    [
        b"RLYP\x00\x01\x01\x00" + bytes(32),
        b"RLYP\x00\x01\x01\x02\xff\xfe" + bytes(32) + b"\r\n\r\n",
    ],
)
def test_F8_a_hello_without_a_proper_run_id_is_refused(hello: bytes) -> None:
    with pytest.raises(ProtocolError, match="run id"):
        _server().feed(hello)


@pytest.mark.parametrize("kind", [0, 2, 4, 255])
def test_F8_a_message_out_of_turn_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"sent message {kind} out of turn"):
        _client().feed(b"RLYP\x00\x01" + bytes([kind]) + bytes(64))


def test_F8_a_second_challenge_is_refused() -> None:
    client = _client()
    challenge = _server().feed(client.hello())
    client.feed(challenge)
    with pytest.raises(ProtocolError, match="out of turn"):
        client.feed(challenge)


@given(st.lists(st.binary(max_size=1500), max_size=12))
def test_F8_no_stranger_fills_the_buffers(segments: list[bytes]) -> None:
    for side, start in (
        (_server(), b""),
        (_server(), b"RLYP\x00\x01"),
        (_client(), b"RLYP\x00\x01"),
    ):
        try:
            for segment in [start, *segments]:
                side.feed(segment)
                assert side.buffered_bytes <= MAX_HANDSHAKE_BYTES
        except (AccessError, ProtocolError):
            assert side.buffered_bytes == 0
        assert side.result is None


@pytest.mark.parametrize("run_id", ["", "x" * 256, "é" * 128])
def test_F8_a_run_id_that_does_not_fit_is_a_usage_error(run_id: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-id has"):
        _client(run_id=run_id)


def test_F8_a_run_id_of_the_full_length_fits() -> None:
    client, server = _client(run_id="x" * 255), _server()
    _talk(client, server)
    assert server.result is not None
    assert server.result == client.result
