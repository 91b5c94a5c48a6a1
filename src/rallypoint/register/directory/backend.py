"""A register in a directory that several machines may share: write-once files, and link(2).

A version is written under a temporary name, made durable, and linked to the first free slot of the
chain (`chain.py`); its directory is made durable before the set says that it stored. Return
codes decide nothing: a file server may execute a request and lose the answer, or execute it when
nobody waits for it any more. After anything but success the slot is read, and the nonce in it tells
whose it is. Success itself is not believed of a writer whose view is old: the directory that it
knows may be one that is being removed.

What is assumed of the file system: link(2) and mkdir(2) are atomic and exclusive, fsync makes files
and names durable (an NFS server exports `sync`, the default), and what is cached is no older than
a minute. Nothing is locked, and no clocks are compared.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from rallypoint.errors import ParameterError, RendezvousConnectionError
from rallypoint.register.contract import RendezvousBackend, Token
from rallypoint.register.directory.chain import (
    BELIEVED_S,
    FIRST,
    Seen,
    Version,
    VersionChain,
    VersionSlot,
    directory_name,
    following_slot,
    seen_then,
    temporary,
    tidy,
)
from rallypoint.register.directory.files import FIXES, Files, LocalFiles
from rallypoint.register.directory.upkeep import probe, remove_register
from rallypoint.register.version_file import NONCE_BYTES, VersionFile, VersionFormat, register_name

_FIXES = FIXES | {
    errno.ENOENT: "it was removed, or is not mounted: it is tried again",
    errno.EPERM: "use a directory of your own, on a file system with hard links",
    errno.ESTALE: "its file server has lost track of it: it is tried again",
}


class DirectoryBackend(RendezvousBackend):
    """The register of one job in a directory.

    A get may miss versions that are newer than what the file system has cached. Which of several
    sets stores is decided by link(2), not by what was read.
    """

    versions_in_a_directory = 256

    def __init__(
        self, directory: str, run_id: str, token: bytes | None = None, files: Files | None = None
    ) -> None:
        """Make a backend in a directory, which must exist and may have registers of other jobs.

        `token` is the job's, which authenticates the versions; with None they are not
        authenticated. Does no I/O. Raises ParameterError for an empty run id.
        """
        if not run_id:
            raise ParameterError("run_id='': a register needs the name of its job")
        self._directory = directory
        self._files: Files = LocalFiles() if files is None else files
        self._job = os.path.join(directory, register_name(run_id))
        self._layout = VersionFormat(run_id, token)
        self._chain = VersionChain(self._files, self._job, self._layout)
        self._is_checked = False
        self._file_system: int | None = None
        """The id of the file system on which the register was last seen; None: it was never
        seen."""

    @property
    def name(self) -> str:
        return "directory"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Return the newest version's content and its token; see `RendezvousBackend`.

        Also raises AccessError if the job's directory is not one that only this user may write to.
        Raises ParameterError if the path of the registers' directory is that of a file. So does
        `set_state`.
        """
        with self._explained():
            tip = self._tip()
            return None if tip is None else (tip.content, tip.seen)

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        with self._explained():
            if token is not None and not isinstance(token, Seen):
                return self._not_stored()
            newest = self._tip() if self._is_old(token) else self._chain.newest
            if newest is not None:
                if token is None or (token != newest.seen and token.slot <= newest.seen.slot):
                    return self._not_stored()
                token = newest.seen if token == newest.seen else token
            if token is None:
                self._make_job_directory()
            try:
                if token is not None and not token.is_durable:
                    self._files.sync(self._chain.path(token.slot.directory))
                return self._append(state, token)
            except FileNotFoundError:
                self._forget()  # It may have been removed, and begun anew.
                raise

    def try_writing(self) -> None:
        """Write and link a file as a set does, but beside the job's register; then remove it.

        Raises as `get_state`. Raises RendezvousConnectionError if there is no register, because an
        empty mount point takes files while nothing is mounted there.
        """
        with self._explained():
            self._files.check_own(self._job)
            probe(self._directory, self._files)

    def remove(self, token: Token) -> bool:
        """Remove this job's register if the token's version is still its newest.

        Returns whether it was removed. Raises as `get_state`.
        """
        with self._explained():
            removed = remove_register(self._files, self._job, partial(self._is_newest, token))
            self._forget()
            return removed

    def _is_newest(self, token: Seen, path: str) -> bool:
        chain = VersionChain(self._files, path, self._layout)
        there = chain.read(token.slot)
        return there is not None and there.seen == token and chain.read(token.following) is None

    def _forget(self) -> None:
        """Forget the newest version that was read: the next call looks for the register anew."""
        self._chain.newest, self._is_checked = None, False

    def _tip(self) -> Version | None:
        if not self._is_checked and not self._is_there():
            # One that was away may have come back after that look: it is looked for once more.
            self._check_directory()
            if not self._is_there():
                self._check_directory()
                return None
        return self._chain.tip()

    def _is_there(self) -> bool:
        """Return whether this job has a register, and note its file system.

        Raises AccessError as `Files.check_own`.
        """
        try:
            self._files.check_own(self._job)
        except FileNotFoundError:
            return False
        self._file_system = self._files.file_system(self._job)
        self._is_checked = True
        return True

    def _check_directory(self) -> None:
        """Raise RendezvousConnectionError if the directory of all registers is missing.

        Also if it is on another file system than this job's register was: an unmounted register was
        not removed, and another node may still see it.
        """
        try:
            self._files.changed_at(self._directory)
            found = self._files.file_system(self._directory)
        except FileNotFoundError as error:
            raise RendezvousConnectionError(
                f"the register's directory {self._directory} does not exist: create it, where all "
                "nodes of the job see it"
            ) from error
        if self._file_system not in (None, found):
            raise RendezvousConnectionError(
                f"the register's directory {self._directory} lies on another file system than "
                "before: see that it is mounted"
            )

    def _is_old(self, token: Seen | None) -> bool:
        """Return whether later versions than the token's may have been removed by now.

        True without a token.
        """
        return token is None or self._files.now() - token.seen_at >= BELIEVED_S

    def _not_stored(self) -> tuple[bytes, Token, bool] | None:
        tip = self._tip()
        return None if tip is None else (tip.content, tip.seen, False)

    def _append(self, state: bytes, token: Seen | None) -> tuple[bytes, Token, bool] | None:
        """Store the state durably in the slot after the version of `token`; None: in the first.

        Return what `set_state` returns; nothing is stored if another writer has the slot.
        """
        if token is not None and self._chain.is_cut(token):
            self._forget()
            return self._not_stored()
        slot = FIRST if token is None else token.following
        following = self._make_directory_after(slot)
        version = VersionFile(self._files.random_bytes(NONCE_BYTES), following, state)
        began_at = self._files.now()
        written_at, failure = self._link(slot, version)
        is_old = token is not None and self._is_old(token)
        if failure is not None or is_old:
            there = self._chain.read(slot)
            if there is None:
                raise failure or OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            if there.seen.nonce != version.nonce:
                self._forget_directory(following)
                self._chain.newest = None if token is None else seen_then(there, token.seen_at)
                return self._not_stored()
        if token is not None:
            # A slot of a directory that is being removed is free: its link proves nothing.
            if is_old and token.slot == FIRST:  # which stays when what follows it is removed
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            self._chain.check_unremoved(token)
        self._files.sync(self._chain.path(slot.directory))
        seen = Seen(slot, version.nonce, following_slot(slot, version), began_at, True)
        self._chain.newest = Version(seen, state)
        if slot.directory and slot.number == 1:
            with suppress(OSError):
                tidy(self._files, self._job, slot.directory, written_at)
        return state, seen, True

    def _link(self, slot: VersionSlot, version: VersionFile) -> tuple[float, OSError | None]:
        """Write a version and link it to the slot.

        Return the time of writing on the file system's clock, and the link's error; None: it was
        linked. Raises OSError if the version can't be written.
        """
        new = temporary(self._files, self._job)
        try:
            written_at = self._files.write(new, self._layout.encode(slot.name, version))
            try:
                self._files.link(new, self._chain.path(slot.name))
            except OSError as error:
                return written_at, error
            return written_at, None
        finally:
            with suppress(OSError):
                self._files.remove(new)

    def _make_job_directory(self) -> None:
        with suppress(FileExistsError):
            self._files.make_directory(self._job)
        self._files.check_own(self._job)
        self._file_system = self._files.file_system(self._job)
        self._files.sync(self._directory)

    def _make_directory_after(self, slot: VersionSlot) -> str:
        """Make a durable directory for the version that follows the one in this slot, if needed.

        It is needed after the first version, and after the last slot of a directory of versions.
        Returns the name of the new directory; empty: the next version goes into the same one.
        """
        if slot.directory and slot.number < self.versions_in_a_directory:
            return ""
        name = directory_name(slot.serial + 1, self._files.random_bytes(8))
        self._files.make_directory(self._chain.path(name))
        self._files.sync(self._job)
        return name

    def _forget_directory(self, name: str) -> None:
        """Remove the empty directory that this writer made to follow a version that was not stored.

        `name`: the directory's; empty: there is none. Ignores errors.
        """
        if name:
            with suppress(OSError):
                self._files.remove_directory(self._chain.path(name))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except NotADirectoryError as error:
            raise ParameterError(
                f"{self._directory} is a file: the register needs a directory that all nodes of "
                "the job share; name another path, or move the file away"
            ) from error
        except OSError as error:
            fix = _FIXES.get(error.errno or 0, "see that it is mounted, and writable for you")
            raise RendezvousConnectionError(
                f"can't use the register in {self._directory}: {error.strerror or error}: {fix}"
            ) from error
