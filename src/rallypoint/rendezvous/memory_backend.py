"""A backend in this process: the reference that says what a backend is, in forty lines."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from rallypoint.errors import ParameterError
from rallypoint.rendezvous.backend import RendezvousBackend, Token


class MemoryRendezvousBackend(RendezvousBackend):
    """One object, shared by the handlers of one process. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state: bytes | None = None
        self._version = 0
        self._beats: dict[str, int] = {}
        self._letters: list[bytes | None] = []

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        with self._changed:
            return None if self._state is None else (self._state, self._version)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if token is not None and not isinstance(token, int):
            raise ParameterError(f"token={token!r}: needs what get_state or set_state returned")
        with self._changed:
            was_set = (None if self._state is None else self._version) == token
            if was_set:
                self._state = state
                self._version += 1
                self._changed.notify_all()
            return None if self._state is None else (self._state, self._version, was_set)

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        """Until the version differs from `token`."""
        known = token or 0
        with self._changed:
            return self._changed.wait_for(lambda: self._version != known, timeout)

    def set_beat(self, node: str, beat: int) -> None:
        """The counter of a node."""
        with self._changed:
            self._beats[node] = beat

    def get_beats(self, nodes: Sequence[str]) -> list[int]:
        """The counters of nodes."""
        with self._changed:
            return [self._beats.get(node, -1) for node in nodes]

    def post_letter(self, letter: bytes) -> int:
        """One more letter."""
        with self._changed:
            self._letters.append(letter)
            return len(self._letters)

    def letters_after(self, number: int) -> list[bytes | None]:
        """Those that were posted later."""
        with self._changed:
            return list(self._letters[number:])

    def delete_letters(self, numbers: Sequence[int]) -> None:
        """Their places stay."""
        with self._changed:
            for number in numbers:
                self._letters[number - 1] = None

    def delete_beat(self, node: str) -> None:
        """The counter of a node."""
        with self._changed:
            self._beats.pop(node, None)
