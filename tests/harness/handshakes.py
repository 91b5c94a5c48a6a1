"""Two sides of a handshake, and what they say to each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from rallypoint.errors import RallypointError
from rallypoint.wire.handshake import ClientHandshake, ServerHandshake
from rallypoint.wire.versions import SPOKEN, Versions

TOKEN = b"the token of this job, 32 bytes."
SERVER_ID = b"0123456789abcdef"
CLIENT_NONCE = b"c" * 32
SERVER_NONCE = b"s" * 32


def new_server(
    token: bytes | None = TOKEN,
    *,
    nonce: bytes = SERVER_NONCE,
    insecure: bool = False,
    spoken: Versions = SPOKEN,
) -> ServerHandshake:
    return ServerHandshake(SERVER_ID, lambda run_id: token, nonce, insecure, spoken)


def new_client(
    token: bytes | None = TOKEN,
    *,
    nonce: bytes = CLIENT_NONCE,
    run_id: str = "job",
    spoken: Versions = SPOKEN,
) -> ClientHandshake:
    return ClientHandshake(run_id, token, nonce, spoken)


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


def converse(
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


def proof_of_a_server_with(token: bytes) -> bytes:
    client, server = new_client(token), new_server(token)
    return server.feed(client.feed(server.feed(client.hello())))[-32:]


def is_one_line(error: RallypointError | None) -> bool:
    return error is not None and str(error).isprintable() and len(str(error)) < 700
