"""The token by which nodes of one user or job authenticate each other (behaviour F8).

It is looked for in `--token-fd` or `--token-file`, in RALLYPOINT_TOKEN, then in the user's own
file. The first node creates that last one, so a cluster with shared home directories needs no
set-up. A file that was named is never created: with a mistyped name the nodes of one job would
refuse each other.

A user's token opens all jobs of the user. Each job runs with a token derived from it, which may be
handed out alone (`rallypoint token --run-id`): it is written `job-<hex>` and opens that job only.
"""

from __future__ import annotations

import errno
import os
import time

from msgspec import Struct

from rallypoint.core.text import named
from rallypoint.errors import AccessError
from rallypoint.files import safe_open, why_not_private
from rallypoint.wire.handshake import how_to_get_a_token
from rallypoint.wire.keys import job_token

TOKEN_BYTES = 32
MIN_TOKEN_BYTES = 16
FD_TIMEOUT_S = 10.0
_MAX_FILE_BYTES = 1024
_MAX_FD = 2**31 - 1
_JOB_PREFIX = "job-"


class JobToken(Struct, frozen=True):
    """A user's token, or that of one job: a secret of at least 128 bits.

    Printing it shows where it came from, never what it is.
    """

    source: str
    value: bytes
    opens_one_job: bool = False

    def __repr__(self) -> str:
        """Return a text with the source of the token, and without the token."""
        return f"Token({self.source!r})"

    @classmethod
    def fresh(cls, source: str) -> JobToken:
        """Return a new random token that is not stored."""
        return cls(source, os.urandom(TOKEN_BYTES))

    def for_job(self, run_id: str) -> bytes:
        """Return the secret of this job, which both sides of a session use.

        A token of another job gives a secret that the coordinator will refuse.
        """
        return self.value if self.opens_one_job else job_token(self.value, run_id)

    def text_for_job(self, run_id: str) -> str:
        """Return the token that opens this job only, in writing.

        To be shown only to a person who asked for it.
        """
        return _JOB_PREFIX + self.for_job(run_id).hex()

    def text(self) -> str:
        """Return the token in writing. To be shown only to a person who asked for it."""
        return (_JOB_PREFIX if self.opens_one_job else "") + self.value.hex()


def find_token(
    token_file: str | None,
    env_value: str | None,
    home: str | os.PathLike[str] | None,
    create: bool,
) -> JobToken | None:
    """Return the token of this user, or None if there is none yet: then a joining node retries.

    It is that of `token_file`, or else of `env_value`, or else of the user's own file. With
    `create` that file is made if it is missing: nodes that race through a shared directory end up
    with the same token. Never sleeps; safe to retry. Raises AccessError, with the fix, when a token
    is unsafe, malformed or can't be made. So it does when `token_file` does not exist, or when the
    user's own file is needed and there is no home directory.
    """
    if token_file is not None:
        source = f"{named.token_file} {_shown(token_file)}"
        token = _read_or_create(token_file, source, create=False)
        if token is None:
            raise AccessError(
                f"{source}: there is no such file: check the name, or make a token there with "
                f"`rallypoint token --token-file {_quoted(token_file)}` and copy it to every node"
            )
        return token
    if env_value:
        return parse_token(env_value, "RALLYPOINT_TOKEN")
    path = user_token_path(home)
    if create:
        _make_folder(os.path.dirname(path))
    return _read_or_create(path, _shown(path), create)


def find_or_make_token(token_file: str) -> JobToken:
    """Return the token in a file, which is made if it is missing, as the user asked.

    Raises AccessError, with the fix, when it is unsafe, malformed or can't be made.
    """
    token = _read_or_create(token_file, f"{named.token_file} {_shown(token_file)}", create=True)
    assert token is not None, "it was made or an error raised"
    return token


def read_token(fd: int) -> JobToken:
    """Read the token from this inherited descriptor.

    It is read to its end and closed; descriptor 0 then becomes the null device. Blocks until the
    writer closes its end, for 10 s at most. Raises AccessError, with the fix; descriptors 1 and 2
    are refused and stay open.
    """
    source = f"{named.token_fd} {fd}"
    if fd in (1, 2) or not 0 <= fd <= _MAX_FD:
        raise AccessError(f"{source}: needs 0, or a number from 3 on, as with 3<FILE in a shell")
    try:
        text = _read_to_end(fd, source)
    except OSError as error:
        raise AccessError(
            f"{source}: can't be read ({error.strerror}): open it for this command, as with "
            f"{fd}<FILE in a shell"
        ) from error
    finally:
        _close(fd)
    if not text.strip():
        raise AccessError(f"{source}: it is empty: write the output of `rallypoint token` to it")
    return parse_token(text, source)


def _read_to_end(fd: int, source: str) -> str:
    from select import POLLIN, poll

    waiting, text = poll(), b""
    waiting.register(fd, POLLIN)
    deadline = time.monotonic() + FD_TIMEOUT_S
    while waiting.poll(max(deadline - time.monotonic(), 0) * 1000):
        part = os.read(fd, _MAX_FILE_BYTES)
        text += part
        if len(text) > _MAX_FILE_BYTES:
            raise AccessError(f"{source}: more than {_MAX_FILE_BYTES} bytes: this is not a token")
        if not part:
            return text.decode("ascii", errors="replace")
    raise AccessError(
        f"{source}: its other end was not closed within {FD_TIMEOUT_S:g} s: write the token and "
        "close it"
    )


def _close(fd: int) -> None:
    """Close the descriptor, so that no worker reads it.

    The null device is opened in place of descriptor 0.
    """
    try:
        if fd == 0:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.close(null)
        else:
            os.close(fd)
    except OSError:
        pass  # It was not open.


def user_token_path(home: str | os.PathLike[str] | None) -> str:
    """Return the path of this user's token, whether it exists or not.

    Raises AccessError if the user has no home directory.
    """
    if home is None or not os.path.isdir(home):
        raise AccessError(
            f"there is no home directory ({home or 'HOME is not set'}) to keep the token in: "
            f"{_ways_out()}"
        )
    return os.path.join(home, ".config", "rallypoint", "token")


def user_home() -> str | None:
    """Return the user's home directory, or None for a user that has none (many containers)."""
    home = os.path.expanduser("~")
    return None if home.startswith("~") else home


def no_token_error(endpoint: object) -> AccessError:
    """Return the error for a coordinator that requires a token, when there is none."""
    where = "RALLYPOINT_TOKEN or the user's file"
    return AccessError(
        f"the coordinator at {endpoint} wants a token, and no token was found in {where}: "
        f"{how_to_get_a_token()}"
    )


def parse_token(text: str, source: str) -> JobToken:
    """Parse a token: at least 128 bits in hexadecimal, after `job-` if it opens one job only.

    Raises AccessError if it is malformed; the error never shows `text`. `source` names its origin.
    """
    digits = text.strip()
    opens_one_job = digits.startswith(_JOB_PREFIX)
    digits = digits.removeprefix(_JOB_PREFIX)
    try:
        value = bytes.fromhex(digits) if digits.isalnum() else b""
    except ValueError:
        value = b""
    if not value:
        raise AccessError(
            f"the token in {source} is not hexadecimal: make a new one with `rallypoint token`"
        )
    if len(value) < MIN_TOKEN_BYTES:
        raise AccessError(
            f"the token in {source} has {8 * len(value)} bits, but at least "
            f"{8 * MIN_TOKEN_BYTES} are needed: make a new one with `rallypoint token`"
        )
    return JobToken(source, value, opens_one_job)


def _read_or_create(path: str, source: str, create: bool) -> JobToken | None:
    text = _read(path)
    if text is None and create:
        _create(path)
        text = _read(path)
        if text is None:
            raise AccessError(
                f"the token {_shown(path)} was removed as soon as it was created: {_ways_out()}"
            )
    return None if text is None else parse_token(text, source)


def _read(path: str) -> str | None:
    """Return the text of a token file, or None if there is no such file.

    Raises AccessError if it can't be read or others may read it; the opened file is checked.
    """
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AccessError(f"can't read the token {_shown(path)}: {error.strerror}") from error
    try:
        flaw = why_not_private(
            os.fstat(handle),
            "token",
            path,
            not_a_file=_ways_out(),
            not_yours=f"run `chown {os.geteuid()} {_quoted(path)}`",
        )
        if flaw:
            raise AccessError(flaw)
        return os.read(handle, _MAX_FILE_BYTES).decode("ascii", errors="replace")
    except OSError as error:
        raise AccessError(f"can't read the token {_shown(path)}: {error.strerror}") from error
    finally:
        os.close(handle)


def _ways_out() -> str:
    return f"give RALLYPOINT_TOKEN or {named.token_file} to every node, or {named.insecure}"


def _shown(path: str) -> str:
    """Return a path as one line of printable text: a name may hold anything, also line breaks."""
    return path if path.isprintable() else ascii(path)


def _quoted(path: str) -> str:
    """Return the path quoted for a shell, for a command line that can be copied."""
    from shlex import quote

    return quote(path) if path.isprintable() else ascii(path)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise AccessError(
            f"can't create {_shown(folder)} for the token: {error.strerror}: {_ways_out()}"
        ) from error


def _create(path: str) -> None:
    """Make the token file unless there is one; the first link wins; no reader sees half of it.

    A link, unlike an exclusive open, is atomic with its content, and also on NFS. Raises
    AccessError.
    """
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(8).hex()}")
    try:
        handle = safe_open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(handle, 0o600)
                file.write(os.urandom(TOKEN_BYTES).hex().encode() + b"\n")
                file.flush()
                os.fsync(handle)
            os.link(draft, path)
        finally:
            os.unlink(draft)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise AccessError(
                f"can't create the token {_shown(path)}: {error.strerror}: {_ways_out()}"
            ) from error
