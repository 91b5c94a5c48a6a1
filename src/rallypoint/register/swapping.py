"""A state in a store that swaps by a token of its own, and whose answers may be lost.

Each version has a nonce. A writer that asked twice, because it got no answer, recognises its own
version by the nonce. If it finds another version, its own may have been stored and replaced since.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import NamedTuple

from rallypoint.errors import ParameterError, RecordError, RendezvousStateError
from rallypoint.register.contract import RendezvousBackend, Token
from rallypoint.register.version_file import (
    NONCE_BYTES,
    UnreadableVersionError,
    VersionFile,
    VersionFormat,
)

Stored = tuple[bytes, Token]
"""The value that a store has, and its token."""


class Swapped(NamedTuple):
    """The answer of a store to a compare-and-swap."""

    stored: Token | None
    """The token of the version that was stored; None: it was not stored."""
    there: Stored | None = None
    """The value that the store has instead, and its token; None: it has none, or the version was
    stored."""
    has_repeated: bool = False
    """Whether the request was sent more than once, so that an earlier one may have stored the
    version."""


class SwappingBackend(RendezvousBackend):
    """The common part of backends in stores that swap a value by their own token, such as etcd."""

    store: str
    """The name of the store in messages: `etcd`."""
    max_state: int
    """The longest state in bytes that `set_state` stores."""
    token_type: type
    is_sure_of_absence = True
    """Whether an empty answer proves that there is no value; here it does."""

    def __init__(self, run_id: str, key: str, layout: VersionFormat) -> None:
        """`key`: where the store has the value; the seal in the encoded bytes covers it, too.

        `layout`: how versions are encoded. Raises ParameterError for an empty run id.
        """
        if not run_id:
            raise ParameterError("run_id='': a register needs the name of its job")
        self._key, self._layout = key, layout

    def get_state(self) -> Stored | None:
        """Return the state and its token; see `RendezvousBackend`.

        Raises RecordError for a value that is not a version of this job.
        """
        with self._explained():
            there = self._read()
            return None if there is None else (self._version(there[0]).content, there[1])

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if token is not None and not isinstance(token, self.token_type):
            found = self.get_state()
            return None if found is None else (*found, False)
        if len(state) > self.max_state:
            raise RendezvousStateError(
                f"a register in {self.store} takes {self.max_state} bytes, and this has "
                f"{len(state)}"
            )
        nonce = os.urandom(NONCE_BYTES)
        data = self._layout.encode(self._key, VersionFile(nonce, "", state))
        with self._explained():
            swapped = self._swap(data, token)
            if swapped.stored is not None:
                return state, swapped.stored, True
            if swapped.there is None:
                return None
            newest, now = self._version(swapped.there[0]), swapped.there[1]
        is_ours = newest.nonce == nonce
        if swapped.has_repeated and not is_ours:
            return None  # Ours may have been stored, and replaced by now.
        return newest.content, now, is_ours

    def _version(self, data: bytes) -> VersionFile:
        try:
            return self._layout.decode(self._key, data)
        except UnreadableVersionError as error:
            raise RecordError(f"{self._described()} {error}") from error

    @abstractmethod
    def _read(self) -> Stored | None:
        """Return the encoded newest version and its token; None: there is none."""

    @abstractmethod
    def _swap(self, data: bytes, token: Token | None) -> Swapped:
        """Store the encoded version if the stored one has this token, and return the answer.

        With a token of None it is stored if the store has no value.
        """

    @abstractmethod
    def _explained(self) -> AbstractContextManager[None]:
        """Return a context that raises the store's errors as those of `RendezvousBackend`."""

    def _described(self) -> str:
        """Return the description of the value's place for messages: `KEY in STORE`."""
        return f"{self._key} in {self.store}"
