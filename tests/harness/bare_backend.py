"""A backend that has what it must have, and nothing more."""

from __future__ import annotations

from rallypoint.elastic.rendezvous.shared.round import decode
from rallypoint.register.contract import MemoryRendezvousBackend, RendezvousBackend, Token


class Bare(RendezvousBackend):
    """Compares and swaps, and nothing else: it is polled, and beats are in the state."""

    def __init__(self, memory: MemoryRendezvousBackend | None = None) -> None:
        self.memory = memory or MemoryRendezvousBackend()

    @property
    def name(self) -> str:
        return "bare"

    def get_state(self) -> tuple[bytes, Token] | None:
        return self.memory.get_state()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        return self.memory.set_state(state, token)


def members(backend: RendezvousBackend) -> int:
    """How many nodes are in the state that the backend holds."""
    found = backend.get_state()
    return len(decode(found[0]).round.members) if found is not None else 0
