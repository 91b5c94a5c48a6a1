"""Conversations of several clients with one store, without a socket, made from bytes.

Whatever bytes come, a conversation is made of them, so that a property test and a coverage-guided
fuzzer share everything: `check_segmentation` and `check_mutant` raise when the store is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise

from rallypoint.errors import ProtocolError
from rallypoint.store.fast_path import FastPath
from rallypoint.store.keyvalue import KeyValueMachine
from rallypoint.wire.c10d_fields import (
    MAX_KEY_BYTES,
    MAX_KEYS_PER_REQUEST,
    MAX_REQUEST_BYTES,
    MAX_VALUE_BYTES,
    VALIDATE_MAGIC,
    Opcode,
)
from rallypoint.wire.c10d_server import ServerSession

VALIDATE = b"\x00" + struct.pack("<I", VALIDATE_MAGIC)
# What follows each opcode: k a key, v a value, i an i64, n a u32, * a counted list.
FIELDS = {
    Opcode.SET: "kv",
    Opcode.COMPARE_SET: "kvv",
    Opcode.GET: "k",
    Opcode.ADD: "ki",
    Opcode.CHECK: "*k",
    Opcode.WAIT: "*k",
    Opcode.GETNUMKEYS: "",
    Opcode.DELETE_KEY: "k",
    Opcode.APPEND: "kv",
    Opcode.MULTI_GET: "*k",
    Opcode.MULTI_SET: "*kv",
    Opcode.CANCEL_WAIT: "",
    Opcode.PING: "n",
    Opcode.QUEUE_PUSH: "kv",
    Opcode.QUEUE_POP: "k",
    Opcode.QUEUE_LEN: "k",
    Opcode.LIST_KEYS: "",
    Opcode.BARRIER: "ki",
}
OPCODES = tuple(FIELDS)
SEES_ALL_KEYS = (Opcode.GETNUMKEYS, Opcode.LIST_KEYS)
OTHERS_PREFIX = bytes.fromhex("e7a95c03d1886f42")  # no mutation makes this up
NASTY_NUMBERS = (
    *(0, 1, 255, MAX_KEY_BYTES, MAX_KEY_BYTES + 1),
    *(MAX_KEYS_PER_REQUEST, MAX_KEYS_PER_REQUEST + 1),
    *(MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1, MAX_REQUEST_BYTES + 1),
    *(2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1),
)
SIZES = (0, 1, 1, 2, 3, 5, 8, 13, 100, 1439, 4096, 70_000)
MAX_STEPS = 24

Step = tuple[int, bytes | None]
"""A client and one request, VALIDATE included before its first; None when it goes away."""


class Choices:
    """Decisions taken from bytes, one after the other; 0 each when there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data, self._next = data, 0

    def __bool__(self) -> bool:
        return self._next < len(self._data)

    def number(self, below: int) -> int:
        """One of `below` numbers; uses two bytes where one has too few values."""
        found = 0
        for _ in range(1 if below <= 256 else 2):
            found = found << 8 | (self._data[self._next] if self else 0)
            self._next += 1
        return found % below

    def content(self) -> bytes:
        """Of any size, binary; half of what is short is a number, for `ADD` to read."""
        size = SIZES[self.number(len(SIZES))]
        if size in (1, 2, 3) and self.number(2):
            return b"-37"[-size:]
        return bytes((self.number(256), 0, 255))[: max(size, 1)] * (size // 3 + 1) if size else b""

    def key(self) -> bytes:
        """Mostly one of a few, so that clients meet."""
        which = self.number(8)
        return self.content()[:MAX_KEY_BYTES] if which == 7 else b"/key"[:which]

    def signed(self) -> int:
        """Mostly small."""
        which = self.number(12)
        return (2**63 - 1, -(2**63))[which - 10] if which > 9 else which - 3

    def request(self, prefix: bytes = b"") -> bytes:
        """One request with all its fields; keys get the prefix."""
        opcode = OPCODES[self.number(len(OPCODES))]
        if prefix and opcode in SEES_ALL_KEYS:
            opcode = Opcode.PING
        fields, encoded = FIELDS[opcode], bytes((opcode,))
        if fields.startswith("*"):
            count = self.number(5)
            fields = fields[1:] * count
            encoded += struct.pack("<Q", count)
        return encoded + b"".join(self._field(field, prefix) for field in fields)

    def _field(self, field: str, prefix: bytes) -> bytes:
        match field:
            case "i":
                return struct.pack("<q", self.signed())
            case "n":
                return struct.pack("<I", self.number(65536) << 8)
            case _:
                content = prefix + self.key() if field == "k" else self.content()
                content = content[:MAX_KEY_BYTES] if field == "k" else content
                return struct.pack("<Q", len(content)) + content

    def conversation(self, clients: tuple[int, ...], prefix: bytes = b"") -> list[Step]:
        """Valid requests of some clients; one of them may go away, and is then never seen again."""
        steps: list[Step] = []
        here, met = list(clients), set()
        for _ in range(1 + self.number(MAX_STEPS)):
            client = here[self.number(len(here))]
            if len(here) > 1 and self.number(16) == 15:
                here.remove(client)
                steps.append((client, None))
                continue
            hello = b"" if client in met else VALIDATE
            met.add(client)
            steps.append((client, hello + self.request(prefix)))
        return steps

    def pieces(self, data: bytes) -> list[bytes]:
        """The same bytes, cut at up to four places."""
        cuts = sorted(self.number(len(data) + 1) for _ in range(self.number(5)))
        bounds = [0, *cuts, len(data)]
        return [data[a:b] for a, b in pairwise(bounds)]

    def mutated(self, stream: bytes) -> bytes:
        """Somewhere changed, once to four times."""
        for _ in range(1 + self.number(4)):
            at, size = self.number(len(stream) + 1), 1 + self.number(16)
            match self.number(7):
                case 0:
                    flipped = bytes(byte ^ 1 << self.number(8) for byte in stream[at : at + 1])
                    stream = stream[:at] + flipped + stream[at + 1 :]
                case 1 | 2:
                    nasty = struct.pack("<Q", NASTY_NUMBERS[self.number(len(NASTY_NUMBERS))])
                    stream = stream[:at] + nasty + stream[at + 8 :]
                case 3:
                    stream = stream[:at]
                case 4:
                    stream = stream[:at] + stream[at + size :]
                case 5:
                    inserted = bytes(self.number(256) for _ in range(size))
                    stream = stream[:at] + inserted + stream[at:]
                case _:
                    stream = stream[:at] + stream[at : at + size] + stream[at:]
        return stream


class Store:
    """Sessions and the machine, joined as the server joins them."""

    def __init__(self) -> None:
        self.machine = KeyValueMachine()
        self._fast = FastPath(self.machine)
        self.sessions: dict[int, ServerSession] = {}
        self.received: dict[int, int] = {}
        self.replies: dict[int, bytearray] = {}
        self.closed: dict[int, str] = {}

    def deliver(self, client: int, data: bytes | None) -> None:
        """What a client sends, or its end. Only ProtocolError is a reason to close it."""
        if client in self.closed:
            return
        if data is None:
            self._close(client, "went away")
            return
        session = self.sessions.setdefault(client, ServerSession())
        replies = self.replies.setdefault(client, bytearray())
        self.received[client] = self.received.get(client, 0) + len(data)
        if data and session.is_validated and not session.is_partial:
            answer, data = self._fast.serve(client, data)
            replies += answer
        try:
            session.receive(data)
            while (request := session.next_request()) is not None:
                self._answer(self.machine.apply(client, request))
        except ProtocolError as error:
            self._close(client, str(error))

    def seen_by(self, clients: Iterable[int]) -> dict[int, tuple[bytes, str | None]]:
        """What each was answered, and why it was closed."""
        return {
            client: (bytes(self.replies.get(client, b"")), self.closed.get(client))
            for client in clients
        }

    def _close(self, client: int, why: str) -> None:
        assert why, "closed without a reason"
        self.closed[client] = why
        self.sessions.pop(client, None)
        self._answer(self.machine.drop(client))

    def _answer(self, replies: Iterable[tuple[int, bytes]]) -> None:
        for client, reply in replies:
            assert client in self.sessions, f"a reply for {client}, who is not there"
            self.replies[client] += reply


def check_segmentation(data: bytes) -> None:
    """The same replies whether each request comes in one piece or cut, ahead of time, or glued.

    A client's request may begin to arrive long before its last byte, between those of others; what
    counts is when the last byte comes.
    """
    choices = Choices(data)
    clients = tuple(range(1, 2 + choices.number(4)))
    steps = choices.conversation(clients)
    whole, cut = Store(), Store()
    for client, request in steps:
        whole.deliver(client, request)
    ahead: dict[int, int] = {}
    glued: dict[int, bytes] = {}
    for number, (client, request) in enumerate(steps):
        if request is not None:
            *pieces, last = choices.pieces(request[ahead.pop(client, 0) :])
            for piece in pieces:
                cut.deliver(client, glued.pop(client, b"") + piece)
            is_followed = steps[number + 1 : number + 2] and steps[number + 1][0] == client
            glued[client] = glued.pop(client, b"") + last
            if is_followed and steps[number + 1][1] is not None and choices.number(2):
                continue  # this one's end and the next one's beginning in one piece
            cut.deliver(client, glued.pop(client))
        else:
            cut.deliver(client, None)
        _begin_early(steps[number + 1 :], choices, cut, ahead)
    assert cut.seen_by(clients) == whole.seen_by(clients)


def _begin_early(rest: list[Step], choices: Choices, cut: Store, ahead: dict[int, int]) -> None:
    """Perhaps sends all but the last byte of the next request of someone."""
    if not rest or not choices.number(3):
        return
    client = rest[choices.number(len(rest))][0]
    following = next(request for who, request in rest if who == client)
    if following is None or client in ahead:
        return
    ahead[client] = choices.number(len(following))
    cut.deliver(client, following[: ahead[client]])


MUTANT = 0


def check_mutant(data: bytes) -> None:
    """A client that sends nonsense is served or closed, keeps little, and nobody else notices."""
    choices = Choices(data)
    requests = [request for _, request in choices.conversation((MUTANT,)) if request is not None]
    check_stream(choices, choices.mutated(b"".join(requests)))


def check_stream(choices: Choices, stream: bytes) -> None:
    """The same for a stream made elsewhere; the choices tell how it is cut, and what others do."""
    others = (1, 2, 3)
    pieces = choices.pieces(stream)
    steps = choices.conversation(others, OTHERS_PREFIX)
    alone, disturbed = Store(), Store()
    for client, request in steps:
        alone.deliver(client, request)
        if pieces:
            _deliver_mutant(disturbed, pieces.pop(0))
        disturbed.deliver(client, request)
    for piece in pieces:
        _deliver_mutant(disturbed, piece)
    disturbed.deliver(MUTANT, None)
    assert disturbed.seen_by(others) == alone.seen_by(others)
    in_one = Store()
    _deliver_mutant(in_one, stream)
    in_pieces = Store()
    for piece in choices.pieces(stream):
        _deliver_mutant(in_pieces, piece)
    assert in_pieces.seen_by([MUTANT]) == in_one.seen_by([MUTANT])


def _deliver_mutant(store: Store, piece: bytes) -> None:
    store.deliver(MUTANT, piece)
    if MUTANT in store.sessions:
        session, received = store.sessions[MUTANT], store.received[MUTANT]
        assert buffered_bytes(session) <= received + 64, "more is kept than has come"


def buffered_bytes(session: ServerSession) -> int:
    """How much a session keeps of what has come and was not taken yet."""
    return len(session._data) - session._at + sum(map(len, session._parts))
