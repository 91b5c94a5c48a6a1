"""A backend under observation: a call that does not end, or returns garbage, names a rule."""

from __future__ import annotations

import threading
from typing import Any

from rallypoint.rendezvous.backend import RendezvousBackend, Token


class BoundedBackend:
    """The calls of another backend, each in a thread of its own. Raises AssertionError."""

    def __init__(self, inner: RendezvousBackend, limit_s: float) -> None:
        self.inner: Any = inner
        self._limit_s = limit_s

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._call("get_state")
        if found is not None:
            self._check("get_state", "None or (bytes, token)", found, 2)
        return found  # type: ignore[no-any-return]

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        found = self._call("set_state", state, token)
        if found is not None:
            self._check("set_state", "None or (bytes, token, was_set)", found, 3)
        return found  # type: ignore[no-any-return]

    def wait_for_change(self, token: Token | None, timeout: float) -> bool:
        seen = self._call("wait_for_change", token, timeout)
        rule = "rule: wait_for_change returns True or False"
        assert isinstance(seen, bool), f"{rule}: it returned {show(seen)}"
        return seen

    def set_beat(self, node: str, beat: int) -> None:
        self._call("set_beat", node, beat)

    def get_beats(self, nodes: Any) -> Any:
        return self._call("get_beats", nodes)

    def post_letter(self, letter: bytes) -> Any:
        return self._call("post_letter", letter)

    def letters_after(self, number: int) -> Any:
        return self._call("letters_after", number)

    def delete_letters(self, numbers: Any) -> None:
        self._call("delete_letters", numbers)

    def delete_beat(self, node: str) -> None:
        self._call("delete_beat", node)

    def _check(self, call: str, wanted: str, found: object, length: int) -> None:
        fine = isinstance(found, tuple) and len(found) == length and isinstance(found[0], bytes)
        assert fine, f"rule: {call} returns {wanted}: it returned {show(found)}"

    def _call(self, name: str, *arguments: object) -> Any:
        outcome: list[Any] = []
        errors: list[BaseException] = []

        def call() -> None:
            try:
                outcome.append(getattr(self.inner, name)(*arguments))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(self._limit_s)
        rule = "rule: no call waits for others"
        assert outcome or errors, f"{rule}: {name} had not returned after {self._limit_s:g} s"
        if errors:
            raise errors[0]
        return outcome[0]


def show(value: object) -> str:
    """The beginning of a value, for a message."""
    return f"{value!r:.60}"
