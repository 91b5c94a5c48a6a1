"""The keys that are derived from a token, each for one purpose, and proofs of the token.

See behaviours F8 and F9. Derivation is HKDF-SHA256 (RFC 5869). The purpose is in `info`, whose
parts carry their lengths, so that no two different inputs are the same bytes.

A proof is HMAC-SHA256, under the token, of a role label and of all that was agreed on. The labels
differ, so no proof can be reflected; both nonces are in it, so none can be replayed.
"""

from __future__ import annotations

from struct import Struct as Layout
from struct import pack

from msgspec import Struct

from rallypoint.hashes import hmac_sha256
from rallypoint.wire.versions import WITH_RANGES, Versions

KEY_BYTES = 32
PROOF_BYTES = 32
_HASH_BYTES = 32
_HEAD = Layout(">HB")
_RANGES = Layout(">4H")
_CLIENT_LABEL = b"rallypoint client\0"
_SERVER_LABEL = b"rallypoint server\0"


class SessionKeys(Struct, frozen=True):
    """The two keys of a connection, one per direction.

    No frame can be played back to its sender.
    """

    client_to_server: bytes
    server_to_client: bytes

    def __repr__(self) -> str:
        """Return a text without the keys."""
        return "SessionKeys()"


def hkdf_extract(salt: bytes, key_material: bytes) -> bytes:
    """Return a pseudo-random key (HKDF-Extract with SHA-256: RFC 5869, section 2.2).

    An empty salt stands for zeros.
    """
    return hmac_sha256(salt or bytes(_HASH_BYTES), key_material)


def hkdf_expand(pseudo_random_key: bytes, info: bytes, length: int) -> bytes:
    """Return `length` bytes of key material (HKDF-Expand with SHA-256: RFC 5869, section 2.3).

    Raises ValueError unless the length is 1 to 255 * 32 bytes.
    """
    if not 0 < length <= 255 * _HASH_BYTES:
        raise ValueError(f"HKDF-SHA256 gives 1 to {255 * _HASH_BYTES} bytes, not {length}")
    output = block = b""
    counter = 1
    while len(output) < length:
        block = hmac_sha256(pseudo_random_key, block + info + bytes((counter,)))
        output += block
        counter += 1
    return output[:length]


def session_keys(
    token: bytes,
    client_nonce: bytes,
    server_nonce: bytes,
    version: int,
    run_id: str,
    ranges: bytes = b"",
) -> SessionKeys:
    """Return the frame keys of one connection.

    Both nonces are fresh, so no other connection has them.

    `ranges` are the versions that each side speaks, packed; empty before protocol version 4.
    """
    info = b"rallypoint session" + pack(">H", version) + _counted(run_id.encode()) + ranges
    secret = hkdf_extract(client_nonce + server_nonce, token)
    keys = hkdf_expand(secret, info, 2 * KEY_BYTES)
    return SessionKeys(client_to_server=keys[:KEY_BYTES], server_to_client=keys[KEY_BYTES:])


def job_token(master: bytes, run_id: str) -> bytes:
    """Return the token of one job, derived from the master token.

    It reveals neither the master token nor other jobs' tokens.
    """
    info = b"rallypoint job token" + _counted(run_id.encode())
    return hkdf_expand(hkdf_extract(b"", master), info, KEY_BYTES)


def round_store_key(token: bytes, run_id: str, incarnation: int, round_: int) -> bytes:
    """Return the key by which nodes of one round prove to its store that they are in it.

    See behaviour F9.
    """
    stamp = f"{incarnation}/{round_}".encode()
    info = b"rallypoint round store" + _counted(run_id.encode()) + _counted(stamp)
    return hkdf_expand(hkdf_extract(b"", token), info, KEY_BYTES)


def register_key(token: bytes, run_id: str) -> bytes:
    """Return the key that authenticates each version of the record of who leads a job."""
    info = b"rallypoint register" + _counted(run_id.encode())
    return hkdf_expand(hkdf_extract(b"", token), info, KEY_BYTES)


class ProofContext(Struct, frozen=True):
    """The facts of a handshake that the proofs of both sides cover.

    Nonces and server id have fixed lengths.
    """

    version: int
    run_id: str
    client_nonce: bytes
    server_nonce: bytes
    server_id: bytes
    offered: Versions
    """The versions that the client speaks, as its hello names them."""
    spoken: Versions
    """The versions that the server speaks."""

    def client_proof(self, token: bytes) -> bytes:
        return self._proof(token, _CLIENT_LABEL)

    def server_proof(self, token: bytes) -> bytes:
        return self._proof(token, _SERVER_LABEL)

    def keys(self, token: bytes) -> SessionKeys:
        """Return the keys for the frames after the handshake."""
        nonces = self.client_nonce, self.server_nonce
        return session_keys(token, *nonces, self.version, self.run_id, self._ranges)

    @property
    def _ranges(self) -> bytes:
        if self.version < WITH_RANGES:
            return b""
        offered, spoken = self.offered, self.spoken
        return _RANGES.pack(offered.oldest, offered.newest, spoken.oldest, spoken.newest)

    def _proof(self, token: bytes, label: bytes) -> bytes:
        run_id = self.run_id.encode()
        fixed = self.client_nonce + self.server_nonce + self.server_id + self._ranges
        # The only part of free length carries it: no two contexts give the same message.
        return hmac_sha256(token, label + _HEAD.pack(self.version, len(run_id)) + run_id + fixed)


def _counted(part: bytes) -> bytes:
    return pack(">I", len(part)) + part
