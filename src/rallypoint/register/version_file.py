"""One version of a register as the bytes of a file, which is written once (`directory/backend.py`).

    magic, u16 schema, u8 how it is sealed, 32 bytes of seal, then what is sealed:
    16 bytes of nonce, u8 length and name of the next directory, the content

The seal is BLAKE2s of the job's name, the file's place and what is sealed, under the job's key if
there is one: a file that was cut, moved, or copied from another job does not pass for this one. The
nonce names the attempt that wrote the file: by it a writer that lost the answer knows its own.
"""

from __future__ import annotations

import re
from struct import Struct as Layout
from struct import pack

from msgspec import Struct

from rallypoint.core.text import named
from rallypoint.hashes import blake2s, compare_digest
from rallypoint.wire.keys import register_key

SCHEMA = 1
NONCE_BYTES = 16
_MAGIC = b"rallypoint register\n"
_SEAL_BYTES = 32
_SCHEMA, _SEAL = Layout(">H"), Layout(f">B{_SEAL_BYTES}s")
_PLAIN, _KEYED = 0, 1
_PREFIX, _READABLE = "rallypoint-", 40
_HASH = 33  # with the hyphen before it


def register_name(run_id: str) -> str:
    """Return the name of a job's register: readable characters of the run id, then its hash."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", run_id)[:_READABLE]
    return f"{_PREFIX}{readable}-{blake2s(run_id.encode(), digest_size=16).hexdigest()}"


def is_register(name: str) -> bool:
    """Return whether a job's register may have this name."""
    return name.startswith(_PREFIX) and len(name) > len(_PREFIX) + _HASH


def readable_run_id(name: str) -> str:
    """Return the run id in the name of a register; empty if the name does not have all of it."""
    readable = name[len(_PREFIX) : -_HASH]
    return readable if register_name(readable) == name else ""


class VersionFile(Struct, frozen=True):
    """One version of a register.

    `following`: the directory of the next version; empty: the same directory.
    """

    nonce: bytes
    following: str
    content: bytes


def _same_token() -> str:
    return (
        "start all nodes with the same token, or use another run id. `rallypoint token` on one "
        "node prints it; give it to the others as ~/.config/rallypoint/token, in RALLYPOINT_TOKEN "
        f"or by {named.token_file}"
    )


class UnreadableVersionError(Exception):
    """The bytes are not a version of this job, or one that this Rallypoint can't read.

    The text of the error continues a sentence that begins with the file or place, and has the fix.
    """


class VersionFormat:
    """The encoding of versions of a job's register, each with a seal over content and place."""

    def __init__(
        self, run_id: str, token: bytes | None, elsewhere: str = "another directory"
    ) -> None:
        """`token`: the secret of the job's processes; None: versions are not authenticated.

        `elsewhere`: for errors, the other place where the user could have the job begin anew.
        """
        self._elsewhere = elsewhere
        job = run_id.encode()
        self._job = pack(">I", len(job)) + job
        self._key = b"" if token is None else register_key(token, run_id)

    def encode(self, place: str, version: VersionFile) -> bytes:
        """Return the bytes of the version at `place`: a slot of a directory, or a store's key."""
        following = version.following.encode()
        sealed = version.nonce + bytes((len(following),)) + following + version.content
        head = _MAGIC + _SCHEMA.pack(SCHEMA)
        return head + _SEAL.pack(self._kind, self._seal(place, sealed)) + sealed

    def decode(self, place: str, data: bytes) -> VersionFile:
        """Decode and check the bytes of the version at `place`. Raises UnreadableVersionError."""
        if not _MAGIC.startswith(data[: len(_MAGIC)]):
            raise UnreadableVersionError(
                f"was not written by Rallypoint (it begins with {data[:16]!r}): move it away, or "
                f"use {self._elsewhere}"
            )
        at = len(_MAGIC) + _SCHEMA.size
        schema = int.from_bytes(data[len(_MAGIC) : at], "big")
        if schema > SCHEMA and len(data) >= at:
            raise UnreadableVersionError(
                f"was written by a newer Rallypoint (format {schema}; this one reads {SCHEMA}): "
                f"use that version on all nodes, or {self._elsewhere}"
            )
        if len(data) <= at + _SEAL.size + NONCE_BYTES or schema != SCHEMA:
            raise _corrupt(self._elsewhere)
        kind, seal = _SEAL.unpack_from(data, at)
        sealed = data[at + _SEAL.size :]
        if kind != self._kind:
            wrote = "with" if kind == _KEYED else "without"
            raise UnreadableVersionError(f"was written by a job {wrote} a token: {_same_token()}")
        if not compare_digest(seal, self._seal(place, sealed)):
            raise (
                _corrupt(self._elsewhere)
                if kind == _PLAIN
                else UnreadableVersionError(
                    f"is corrupt, or was written with another token: {_same_token()}"
                )
            )
        return _opened(sealed)

    @property
    def _kind(self) -> int:
        return _KEYED if self._key else _PLAIN

    def _seal(self, place: str, sealed: bytes) -> bytes:
        name = place.encode()
        seal = blake2s(key=self._key, digest_size=_SEAL_BYTES)
        for part in (self._job, pack(">I", len(name)), name, sealed):
            seal.update(part)
        return seal.digest()


class UnsealedFormat(VersionFormat):
    """The decoder of any job's versions, without authentication."""

    def __init__(self) -> None:
        super().__init__("", None)

    def decode(self, place: str, data: bytes) -> VersionFile:
        """Decode the bytes of a version without checking its seal or the number of its format.

        Raises UnreadableVersionError.
        """
        try:
            return _opened(data[len(_MAGIC) + _SCHEMA.size + _SEAL.size :])
        except (IndexError, UnicodeDecodeError) as error:
            raise _corrupt() from error


def _opened(sealed: bytes) -> VersionFile:
    """Decode the part of a version that `encode` seals: nonce, next directory and content.

    May raise IndexError or UnicodeDecodeError for other bytes.
    """
    name_at = NONCE_BYTES + 1
    content_at = name_at + sealed[NONCE_BYTES]
    following = sealed[name_at:content_at].decode()
    return VersionFile(sealed[:NONCE_BYTES], following, sealed[content_at:])


def _corrupt(elsewhere: str = "another directory") -> UnreadableVersionError:
    return UnreadableVersionError(
        f"is corrupt: restore it, or use {elsewhere} or run id; it is not overwritten"
    )
