"""F8: who may take part. Nothing here does I/O: two state machines and the bytes between them."""

from __future__ import annotations

from hmac import digest
from struct import pack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.handshakes import (
    CLIENT_NONCE,
    SERVER_ID,
    SERVER_NONCE,
    TOKEN,
    converse,
    is_one_line,
    new_client,
    new_server,
    proof_of_a_server_with,
)

from rallypoint.core.messages import Detailed, Numbered
from rallypoint.core.model import Stamp
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import AccessError, ExitClass, VersionMismatchError
from rallypoint.wire.codec import encode
from rallypoint.wire.handshake import MAX_HANDSHAKE_BYTES, Established, ServerHandshake
from rallypoint.wire.keys import ProofContext, session_keys
from rallypoint.wire.versions import SPOKEN, Versions


@given(
    cuts=st.lists(st.integers(min_value=0, max_value=1000), max_size=30),
    run_id=st.text(min_size=1, max_size=60),
    token=st.sampled_from([TOKEN, None]),
)
def test_F8_both_sides_agree_under_any_segmentation(
    cuts: list[int], run_id: str, token: bytes | None
) -> None:
    client = new_client(token, run_id=run_id)
    server = new_server(token, insecure=token is None)
    talk = converse(client, server, cuts)
    assert (talk.client_error, talk.server_error) == (None, None)
    assert isinstance(server.result, Established)
    assert server.result == client.result
    assert server.result.run_id == run_id
    assert server.result.server_id == SERVER_ID
    assert (server.result.keys is None) == (token is None)


def test_F8_each_job_and_each_connection_has_its_own_keys() -> None:
    seen = set()
    for client, server in (
        (new_client(), new_server()),
        (new_client(nonce=b"d" * 32), new_server()),
        (new_client(), new_server(nonce=b"t" * 32)),
        (new_client(run_id="other"), new_server()),
    ):
        converse(client, server)
        assert server.result is not None
        assert server.result.keys is not None
        seen |= {server.result.keys.client_to_server, server.result.keys.server_to_client}
    assert len(seen) == 8


def test_F8_the_token_never_crosses_the_wire() -> None:
    talk = converse(new_client(), new_server())
    assert TOKEN not in talk.to_server + talk.to_client
    assert TOKEN[:8] not in talk.to_server + talk.to_client


def test_F8_the_token_is_looked_up_by_run_id_and_only_for_a_complete_proof() -> None:
    asked: list[str] = []

    def lookup(run_id: str) -> bytes:
        asked.append(run_id)
        return TOKEN

    server = ServerHandshake(SERVER_ID, lookup, SERVER_NONCE, insecure=False)
    client = new_client(run_id="a job")
    proof = client.feed(server.feed(client.hello()))
    server.feed(proof[:-1])
    assert asked == []
    server.feed(proof[-1:])
    assert asked == ["a job"]


def test_F8_what_follows_the_handshake_is_handed_on() -> None:
    client, server = new_client(), new_server()
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
    client, server = new_client(), new_server(known)
    talk = converse(client, server)
    for error in (talk.client_error, talk.server_error):
        assert isinstance(error, AccessError)
        assert error.exit_class is ExitClass.USAGE
        assert is_one_line(error)
    said = (
        "wrong token for job 'job', or another job uses this endpoint. All nodes of a job need "
        "the same --rdzv-id and token (`rallypoint token` prints it)"
    )
    assert said in str(talk.client_error), "strangers learn no run ids"
    assert "`rallypoint token`" in str(talk.client_error)
    told = (
        "wrong token for job 'job'"
        if known
        else ("of job 'job', but this coordinator hosts another job")
    )
    assert told in str(talk.server_error)
    assert client.result is None
    assert server.result is None


def test_F8_strangers_can_not_tell_an_unknown_job_from_a_wrong_token() -> None:
    unknown = converse(new_client(), new_server(None))
    wrong = converse(new_client(), new_server(b"another token of thirty-two bytes"))
    assert unknown.to_client == wrong.to_client


def test_F8_an_unknown_job_can_not_be_opened_with_what_the_server_sent() -> None:
    nonce = SPOKEN.marked(SERVER_NONCE)
    for guess in (nonce + SERVER_ID, nonce, SERVER_ID):
        server = new_server(None)
        talk = converse(new_client(guess), server)
        assert isinstance(talk.server_error, AccessError)
        assert server.result is None


def test_F8_a_server_that_does_not_know_the_token_is_refused() -> None:
    """The client proves first, to anyone; the server's own proof must still hold."""
    for guess in (b"\0" * 32, proof_of_a_server_with(b"a guess of thirty-two bytes, wrong")):
        client, impostor = new_client(), new_server()
        client.feed(impostor.feed(client.hello()))
        with pytest.raises(AccessError, match="could not prove"):
            client.feed(b"RLYP\x00" + bytes([SPOKEN.newest]) + b"\x02" + guess)
        assert client.result is None


def test_F8_a_client_with_a_token_refuses_a_server_that_does_not_ask() -> None:
    client, server = new_client(), new_server(insecure=True)
    talk = converse(client, server)
    assert isinstance(talk.client_error, AccessError)
    assert "running with --insecure" in str(talk.client_error)
    assert isinstance(talk.server_error, AccessError)
    assert "--insecure" in str(talk.server_error)
    assert is_one_line(talk.client_error)
    assert is_one_line(talk.server_error)
    assert len(talk.to_server) == len(client.hello()), "not even a proof is sent"


def test_F8_a_client_without_a_token_learns_how_to_get_one() -> None:
    client, server = new_client(None), new_server()
    talk = converse(client, server)
    for error in (talk.client_error, talk.server_error):
        assert isinstance(error, AccessError)
        for way in (
            "rallypoint token",
            "~/.config/rallypoint/token",
            "RALLYPOINT_TOKEN",
            "--token-file",
        ):
            assert way in str(error)
        assert is_one_line(error)
    assert server.result is None


def test_F8_nobody_in_the_middle_can_talk_a_client_down_to_no_token() -> None:
    def strip(direction: str, data: bytes) -> bytes:
        if direction == "up" and data.startswith(b"RLYP"):
            return data[:6] + bytes([data[6] & ~1]) + data[7:]  # hides "I have a token"
        if direction == "down" and data[:7] == b"RLYP\x00\x04\x01":
            return data[:7] + b"\x00" + data[8:]  # hides "I require a token"
        return data

    client, server = new_client(), new_server()
    talk = converse(client, server, tamper=strip)
    assert isinstance(talk.client_error, AccessError)
    assert isinstance(talk.server_error, AccessError)
    assert client.result is None
    assert server.result is None


def test_F8_a_reflected_proof_does_not_open_the_door() -> None:
    """An attacker without the token lets one honest side answer the other's challenge."""
    client = new_client()
    reflected = new_server(nonce=CLIENT_NONCE)
    proof = client.feed(reflected.feed(client.hello()))
    client_again = new_client()
    challenge = new_server(nonce=CLIENT_NONCE).feed(client_again.hello())
    client_again.feed(challenge)
    with pytest.raises(AccessError, match="could not prove"):
        client_again.feed(b"RLYP\x00" + bytes([SPOKEN.newest]) + b"\x02" + proof)


def test_F8_a_replayed_session_does_not_open_the_door() -> None:
    talk = converse(new_client(), new_server())
    replayed = new_server(nonce=b"n" * 32)
    with pytest.raises(AccessError, match="wrong token"):
        replayed.feed(talk.to_server)
    assert replayed.result is None
    fooled = new_client(nonce=b"m" * 32)
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

    client, server = new_client(), new_server()
    converse(client, server, tamper=flip)
    if hit:
        # Bits that mean nothing may change; what both sides derive from must be equal then.
        assert client.result is None or server.result == client.result


@pytest.mark.parametrize("token", [TOKEN, None])
@pytest.mark.parametrize(
    ("client", "server", "common"),
    [
        ((2, 2), (2, 2), 2),
        ((2, 2), (2, 3), 2),
        ((2, 3), (2, 2), 2),
        ((2, 4), (2, 3), 3),
        ((2, 3), (2, 4), 3),
        ((2, 4), (2, 2), 2),
        ((2, 4), (2, 4), 4),
        ((3, 4), (2, 3), 3),
        ((2, 5), (3, 9), 5),
    ],
)
def test_R7_the_newest_version_that_both_sides_speak_is_used(
    client: tuple[int, int], server: tuple[int, int], common: int, token: bytes | None
) -> None:
    dials = new_client(token, spoken=Versions(*client))
    answers = new_server(token, insecure=token is None, spoken=Versions(*server))
    talk = converse(dials, answers)
    assert (talk.client_error, talk.server_error) == (None, None)
    assert dials.result is not None
    assert dials.result == answers.result
    assert dials.result.version == common


@pytest.mark.parametrize(
    ("client", "server", "their"),
    [((7, 7), (2, 3), "version 3"), ((2, 3), (5, 7), "version 7"), ((1, 1), (2, 2), "version 2")],
)
def test_R7_versions_that_do_not_overlap_are_named_on_both_sides(
    client: tuple[int, int], server: tuple[int, int], their: str
) -> None:
    dials, spoken = new_client(spoken=Versions(*client)), Versions(*server)
    talk = converse(dials, new_server(spoken=spoken))
    assert isinstance(talk.client_error, VersionMismatchError)
    assert isinstance(talk.server_error, VersionMismatchError)
    assert (talk.client_error.ours, talk.client_error.theirs) == (str(Versions(*client)), their)
    assert talk.server_error.ours == str(spoken)
    assert talk.server_error.theirs == str(Versions(*client))
    assert is_one_line(talk.client_error)
    assert f"its peer uses {their}: install the same version" in str(talk.client_error)
    assert talk.client_error.exit_class is ExitClass.USAGE
    # A client whose layout of an answer is another one can still show what this says.
    assert f"uses {Versions(*client)} of" in talk.to_client.decode("latin-1")
    assert f"its peer uses {spoken}: install" in talk.to_client.decode("latin-1")


@pytest.mark.parametrize("strips", ["", "up", "down", "up and down"])
@pytest.mark.parametrize("shown", [(2, 2), (2, 3), (3, 3), (3, 4), (4, 4)])
@pytest.mark.parametrize("server", [(2, 4), (2, 5), (3, 4)])
def test_R7_nobody_in_the_middle_can_have_two_sides_use_an_older_version_than_both_speak(
    server: tuple[int, int], shown: tuple[int, int], strips: str
) -> None:
    """Whoever stands there shows the server another range, and makes nonces look like old ones."""
    dials, answers = new_client(), new_server(spoken=Versions(*server))

    def alter(direction: str, data: bytes) -> bytes:
        if direction == "up" and data[4:6] == b"\0\2" and data.endswith(b"\r\n\r\n"):
            range_ = Versions(*shown)
            head = data[:4] + range_.oldest.to_bytes(2, "big") + bytes([range_.in_flags(1)])
            nonce = data[-36:-4] if "up" not in strips else CLIENT_NONCE
            return head + data[7:-36] + nonce + data[-4:]
        if direction == "down" and data[6:7] == b"\1" and "down" in strips:
            return data[:8] + SERVER_NONCE + data[40:]
        return data

    talk = converse(dials, answers, tamper=alter)
    assert talk.client_error is not None
    assert talk.server_error is not None or dials.result is None
    assert (dials.result, answers.result) == (None, None)
    for error in (talk.client_error, talk.server_error):
        assert error is None or is_one_line(error)


@pytest.mark.parametrize("version", [2, 3])
def test_R7_a_side_of_an_older_version_proves_and_derives_what_it_always_did(version: int) -> None:
    """Whatever the newer one says in its nonce."""
    nonces = Versions(2, 4).marked(CLIENT_NONCE), SERVER_NONCE
    ranges = Versions(2, 4), Versions(2, version)
    context = ProofContext(version, "job", *nonces, SERVER_ID, *ranges)
    agreed = pack(">HB", version, 3) + b"job" + nonces[0] + nonces[1] + SERVER_ID
    expected = digest(TOKEN, b"rallypoint client\0" + agreed, "sha256")
    assert context.client_proof(TOKEN) == expected
    assert context.keys(TOKEN).client_to_server == (
        session_keys(TOKEN, *nonces, version, "job").client_to_server
    )


def test_R7_the_proofs_and_keys_of_version_4_cover_what_both_sides_speak() -> None:
    seen = set()
    for offered in (Versions(2, 4), Versions(3, 4), Versions(2, 5)):
        for spoken in (Versions(2, 4), Versions(4, 4)):
            context = ProofContext(4, "job", CLIENT_NONCE, SERVER_NONCE, SERVER_ID, offered, spoken)
            keys = context.keys(TOKEN)
            seen |= {context.client_proof(TOKEN), context.server_proof(TOKEN)}
            seen |= {keys.client_to_server, keys.server_to_client}
    assert len(seen) == 6 * 4


def test_R7_a_coordinator_that_changes_the_version_is_refused() -> None:
    def alter(direction: str, data: bytes) -> bytes:
        return data.replace(b"RLYP\0\3\2", b"RLYP\0\2\2") if direction == "down" else data

    dials = new_client(spoken=Versions(2, 3))
    talk = converse(dials, new_server(spoken=Versions(2, 3)), tamper=alter)
    assert "changed to version 2 in the handshake" in str(talk.client_error)
    assert dials.result is None


def test_a_failure_has_the_layout_of_this_version_on_the_wire() -> None:
    # Only an append with a default keeps the version that others have; any other change raises it.
    failure = WorkerExit(
        None, 11, True, 1, 3, "trainer", 7, 0.5, 9.0, "m", "d", "log", False, "why"
    )
    on_the_wire = encode(Numbered(1, Detailed(Stamp(1, 2), (failure,))))
    _, _, (_, _, (fields,)) = msgspec.msgpack.decode(on_the_wire)
    values = [None, 11, True, 1, 3, "trainer", 7, 0.5, 9.0, "m", "d", "log", False, "why"]
    assert fields[: len(values)] == values
    assert SPOKEN.oldest == 2
