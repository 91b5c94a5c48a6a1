"""A state as one value of a store that swaps by a token of its own, whose answers may be lost.

Each version has a nonce. So a writer that has asked twice, because it got no answer, knows its own
version when it finds that there; and if it finds another one, its own may have been stored, and
replaced since.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import NamedTuple

from rallypoint.errors import RendezvousStateError
from rallypoint.register.contract import RendezvousBackend, Token
from rallypoint.register.version_file import NONCE_BYTES, VersionFile

VersionFound = tuple[VersionFile, Token]


class Swapped(NamedTuple):
    """How a store has answered."""

    stored: Token | None
    """Of the version that it has stored; None: it has not."""
    there: VersionFound | None = None
    """What it has instead."""
    has_repeated: bool = False
    """It was asked before, and may have stored the version then."""


class SwappingBackend(RendezvousBackend):
    """What is the same for etcd and for Kubernetes."""

    store: str
    """Its name, for people."""
    max_state: int
    """Bytes."""
    token_type: type
    is_sure_of_absence = True

    def get_state(self) -> tuple[bytes, Token] | None:
        """See `RendezvousBackend`. Raises RecordError for what is no version of this job."""
        with self._explained():
            there = self._read()
        return None if there is None else (there[0].content, there[1])

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
        version = VersionFile(os.urandom(NONCE_BYTES), "", state)
        with self._explained():
            swapped = self._swap(version, token)
        if swapped.stored is not None:
            return state, swapped.stored, True
        if swapped.there is None:
            return None
        newest, now = swapped.there
        is_ours = newest.nonce == version.nonce
        if swapped.has_repeated and not is_ours:
            return None  # Ours may have been stored, and replaced by now.
        return newest.content, now, is_ours

    @abstractmethod
    def _read(self) -> VersionFound | None:
        """The newest version; None: there is none."""

    @abstractmethod
    def _swap(self, version: VersionFile, token: Token | None) -> Swapped:
        """Store this if what is there has this token; None: if nothing is there."""

    @abstractmethod
    def _explained(self) -> AbstractContextManager[None]:
        """Within it, what the store raises is told as `RendezvousBackend` says."""
