"""The preamble by which an agent enrols its address with a round store (behaviour F9). Pure.

    agent -> store   "RLYE", version u8, agent nonce (16 B)
    store -> agent   store nonce (16 B)
    agent -> store   proof (32 B), node length u8, node (UTF-8)
    store -> agent   verdict u8 (0 enrolled, 1 refused), then if enrolled: proof (32 B),
                     address length u8, the source address that the store saw (ASCII)

A proof is HMAC-SHA256 under the key of the round over a role label, the version, both nonces and
what the sender sends. The store's nonce makes a recorded preamble worthless, the labels keep proofs
from being sent back as the other side's own, and the agent proves first, so that a stranger learns
nothing from asking. The first byte differs from a c10d client's, the fourth from a session's.
"""

from __future__ import annotations

from rallypoint.errors import ProtocolError
from rallypoint.hashes import SHA256_BYTES, compare_digest, hmac_sha256
from rallypoint.wire.preamble import ENROLMENT_MAGIC

MAGIC = ENROLMENT_MAGIC
VERSION = 1
NONCE_BYTES = 16
MAX_TEXT_BYTES = 255

_ENROLLED, _REFUSED = b"\x00", b"\x01"
_PROOF_BYTES = SHA256_BYTES
PREAMBLE_MAX_BYTES = len(MAGIC) + 1 + NONCE_BYTES + _PROOF_BYTES + 1 + MAX_TEXT_BYTES
"""The most bytes that an agent sends to enrol with a round store."""
_AGENT, _STORE = b"rallypoint round store: agent", b"rallypoint round store: store"


class EnrolmentRefusedError(ProtocolError):
    """The refusal of an enrolment: the two sides have keys of different rounds or jobs."""


class _Side:
    """The common part of both sides of an enrolment.

    It gets bytes and returns bytes, without I/O.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 0
        self.result: str | None = None
        """The text that the peer has proven to have sent, once the exchange is over: for the store
        the node's name, for the agent its own address. None before."""

    def receive(self, data: bytes) -> bytes:
        """Process the peer's bytes in any segmentation, and return those to send, if any.

        Raises ProtocolError for a foreign peer, another version, and bytes after the end, and
        EnrolmentRefusedError if the keys differ.
        """
        self._buffer += data
        output = bytearray()
        while self.result is None and len(self._buffer) >= self._wanted:
            piece = bytes(self._buffer[: self._wanted])
            del self._buffer[: self._wanted]
            output += self._advance(piece)
        if self.result is not None and self._buffer:
            raise ProtocolError("bytes follow the end of the enrolment")
        return bytes(output)

    def _advance(self, piece: bytes) -> bytes:
        raise NotImplementedError


class StoreEnrolment(_Side):
    """The round store's side of an enrolment, in which an agent proves that it is in the round.

    `key` is that of the round, `nonce` is 16 fresh random bytes, and `address` is the agent's
    numeric source address. When `result` is the node's name, a node of this round has been proven
    to be at `address`: send what `receive` returned and close. After an EnrolmentRefusedError, send
    `refusal` and close.
    """

    refusal = _REFUSED

    def __init__(self, key: bytes, nonce: bytes, address: str) -> None:
        super().__init__()
        self._key, self._nonce, self._address = key, nonce, address
        self._step = 0
        self._agent_nonce = self._proof = b""
        self._wanted = len(MAGIC) + 1 + NONCE_BYTES

    def _advance(self, piece: bytes) -> bytes:
        self._step += 1
        match self._step:
            case 1:
                _check_hello(piece)
                self._agent_nonce = piece[len(MAGIC) + 1 :]
                self._wanted = _PROOF_BYTES + 1
                return self._nonce
            case 2:
                self._proof, self._wanted = piece[:-1], piece[-1]
                return b""
            case _:
                return self._judge(piece)

    def _judge(self, node: bytes) -> bytes:
        nonces = self._agent_nonce + self._nonce
        if not compare_digest(self._proof, _prove(self._key, _AGENT, nonces, node)):
            raise EnrolmentRefusedError("the node does not hold the key of this round")
        self.result = node.decode(errors="replace")
        address = self._address.encode()
        proof = _prove(self._key, _STORE, nonces, address)
        return _ENROLLED + proof + bytes((len(address),)) + address


class AgentEnrolment(_Side):
    """The agent's side of an enrolment: it proves to a round's store that its node is in the round.

    Send `hello` first. `result` is the agent's own address as the store saw it.
    """

    def __init__(self, key: bytes, nonce: bytes, node: str) -> None:
        super().__init__()
        self._key, self._nonce = key, nonce
        self._node = node.encode()[:MAX_TEXT_BYTES]
        self._step = 0
        self._store_nonce = self._proof = b""
        self._wanted = NONCE_BYTES

    @property
    def hello(self) -> bytes:
        return MAGIC + bytes((VERSION,)) + self._nonce

    def _advance(self, piece: bytes) -> bytes:
        self._step += 1
        match self._step:
            case 1:
                self._store_nonce, self._wanted = piece, 1
                proof = _prove(self._key, _AGENT, self._nonce + piece, self._node)
                return proof + bytes((len(self._node),)) + self._node
            case 2:
                if piece != _ENROLLED:
                    raise EnrolmentRefusedError("the store holds the key of another round or job")
                self._wanted = _PROOF_BYTES + 1
            case 3:
                self._proof, self._wanted = piece[:-1], piece[-1]
            case _:
                nonces = self._nonce + self._store_nonce
                if not compare_digest(self._proof, _prove(self._key, _STORE, nonces, piece)):
                    raise ProtocolError("what answers there does not hold the key of this round")
                self.result = piece.decode(errors="replace")
        return b""


def is_enrolment_preamble(first_bytes: bytes) -> bool:
    """Return whether a connection that begins with these 4 bytes is an enrolling agent's."""
    return first_bytes[: len(MAGIC)] == MAGIC


def _check_hello(piece: bytes) -> None:
    if not is_enrolment_preamble(piece):
        raise ProtocolError(f"{piece[:4]!r} begins neither a c10d client nor an enrolment")
    if piece[len(MAGIC)] != VERSION:
        raise ProtocolError(
            f"the node uses version {piece[len(MAGIC)]} of the enrolment, this one version "
            f"{VERSION}: install the same version of rallypoint everywhere"
        )


def _prove(key: bytes, role: bytes, nonces: bytes, said: bytes) -> bytes:
    # All parts before the last have a fixed length: no two inputs can be read as the same message.
    return hmac_sha256(key, role + bytes((VERSION,)) + nonces + said)
