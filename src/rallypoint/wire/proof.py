"""How one side of a handshake shows that it knows a token without telling it (behaviour F8).

A proof is HMAC-SHA256, under the token, of a role label and of all that was agreed on. The labels
differ, so no proof can be reflected; both nonces are in it, so none can be replayed.
"""

from __future__ import annotations

from hmac import digest
from struct import Struct

import msgspec

from rallypoint.wire.keys import SessionKeys, session_keys

PROOF_BYTES = 32

_HEAD = Struct(">HB")
_CLIENT_LABEL = b"rallypoint client\0"
_SERVER_LABEL = b"rallypoint server\0"


class Context(msgspec.Struct, frozen=True):
    """What both proofs are about. Nonces and server id have fixed lengths."""

    version: int
    run_id: str
    client_nonce: bytes
    server_nonce: bytes
    server_id: bytes

    def client_proof(self, token: bytes) -> bytes:
        return self._proof(token, _CLIENT_LABEL)

    def server_proof(self, token: bytes) -> bytes:
        return self._proof(token, _SERVER_LABEL)

    def keys(self, token: bytes) -> SessionKeys:
        """The keys of the frames that follow."""
        return session_keys(token, self.client_nonce, self.server_nonce, self.version, self.run_id)

    def _proof(self, token: bytes, label: bytes) -> bytes:
        run_id = self.run_id.encode()
        fixed = self.client_nonce + self.server_nonce + self.server_id
        # The only part of free length carries it: no two contexts give the same message.
        return digest(
            token, label + _HEAD.pack(self.version, len(run_id)) + run_id + fixed, "sha256"
        )
