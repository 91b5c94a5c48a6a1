"""F8: peers that are something else, or say what nobody of the job would say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.handshakes import converse, is_one_line, new_client, new_server

from rallypoint.errors import AccessError, ForeignPeerError, ProtocolError, UsageError
from rallypoint.wire.handshake import MAX_HANDSHAKE_BYTES


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
    for side in (new_client(), new_server()):
        with pytest.raises(ForeignPeerError, match="another program answers") as caught:
            side.feed(banner)
        assert hint in str(caught.value)
        assert is_one_line(caught.value)
        assert side.last_words == b"", "a stranger's protocol is not answered in ours"
        with pytest.raises(ForeignPeerError):
            side.feed(b"more")


def test_F8_a_peer_that_hangs_up_or_says_nothing_has_an_error_too() -> None:
    error = new_client().unfinished()
    assert isinstance(error, ForeignPeerError)
    assert is_one_line(error)


def test_F8_a_refusal_is_made_safe_for_a_terminal() -> None:
    text = b"no\x1b[2Jroom\nfor \xff you\xe2\x80\xae"
    refusal = b"RLYP\x00\x02\x03" + len(text).to_bytes(2, "big") + text
    client = new_client()
    assert client.feed(refusal[:-1]) == b"", "the whole line is waited for"
    with pytest.raises(AccessError) as caught:
        client.feed(refusal[-1:])
    assert "no?[2Jroom?for" in str(caught.value)
    assert is_one_line(caught.value)


def test_F8_a_hostile_run_id_is_made_safe_for_the_coordinators_log() -> None:
    server = new_server()
    hello = new_client(run_id="a\n\x1b[2Jb").hello()
    server.feed(hello)
    with pytest.raises(AccessError) as caught:
        server.feed(b"x" * 32)
    assert r"job 'a\n\x1b[2Jb'" in str(caught.value)
    assert is_one_line(caught.value)


def test_F8_a_refusal_too_long_is_not_waited_for() -> None:
    with pytest.raises(ProtocolError, match="refuses in 65535 bytes"):
        new_client().feed(b"RLYP\x00\x02\x03\xff\xff")


@pytest.mark.parametrize(
    "hello",
    [
        b"RLYP\x00\x02\x01\x00" + bytes(32),
        b"RLYP\x00\x02\x01\x02\xff\xfe" + bytes(32) + b"\r\n\r\n",
    ],
)
def test_F8_a_hello_without_a_proper_run_id_is_refused(hello: bytes) -> None:
    with pytest.raises(ProtocolError, match="run id"):
        new_server().feed(hello)


@pytest.mark.parametrize("kind", [0, 2, 4, 255])
def test_F8_a_message_out_of_turn_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"sent message {kind} out of turn"):
        new_client().feed(b"RLYP\x00\x02" + bytes([kind]) + bytes(64))


def test_F8_a_second_challenge_is_refused() -> None:
    client = new_client()
    challenge = new_server().feed(client.hello())
    client.feed(challenge)
    with pytest.raises(ProtocolError, match="out of turn"):
        client.feed(challenge)


@given(st.lists(st.binary(max_size=1500), max_size=12))
def test_F8_no_stranger_fills_the_buffers(segments: list[bytes]) -> None:
    for side, start in (
        (new_server(), b""),
        (new_server(), b"RLYP\x00\x02"),
        (new_client(), b"RLYP\x00\x02"),
    ):
        try:
            for segment in [start, *segments]:
                side.feed(segment)
                assert len(side._inbox) <= MAX_HANDSHAKE_BYTES
        except (AccessError, ProtocolError):
            assert len(side._inbox) == 0
        assert side.result is None


@pytest.mark.parametrize("run_id", ["", "x" * 256, "é" * 128])
def test_F8_a_run_id_that_does_not_fit_is_a_usage_error(run_id: str) -> None:
    with pytest.raises(UsageError, match="--rdzv-id has"):
        new_client(run_id=run_id)


def test_F8_a_run_id_of_the_full_length_fits() -> None:
    client, server = new_client(run_id="x" * 255), new_server()
    converse(client, server)
    assert server.result is not None
    assert server.result == client.result
