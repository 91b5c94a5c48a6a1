"""Opening of files for writing, and removal of directories: the only module for both.

If Rallypoint chose the name, another user may have guessed it: `safe_open` writes to no link, pipe,
device or file of another user. If a person chose the name, `open_named` opens whatever it names: a
link is followed, a device or a pipe is written to. Neither waits for the reader of a pipe, passes
the descriptor to a started program, or makes a terminal the controlling one.

The standard library alone: workers import this too.
"""

from __future__ import annotations

import errno
import os
import stat

_ALWAYS = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
Path = str | bytes


def local_path(text: str, needs: str = "a file", *, expand: bool = True) -> str:
    """Return the path that the text of an option means, in a form for system calls.

    Looks at no file.

    `file:///a` is `/a`, and with `expand` `~/a` is in the user's home. Raises ValueError, with a
    text that begins with `needs`. It does so for another address (`s3://...`, `dbfs:/...`), a
    `file:` address with another host or no path, a shell variable that was not replaced, and an
    unknown home.
    """
    if text[:5].lower() == "file:":
        host, slash, rest = text[5:].removeprefix("//").partition("/")
        if host not in ("", "localhost") or not slash:
            raise ValueError(f"{needs}: file:///PATH, without a host")
        text = slash + rest
        if "%" in text:
            from urllib.parse import unquote  # takes milliseconds to import

            text = unquote(text)
    elif scheme := _scheme(text):
        raise ValueError(f"{needs}, and {scheme}... is none: give a path of this machine")
    elif is_unset_variable(text):
        raise ValueError(f"{needs}: the variable was not expanded by a shell; give the path itself")
    elif expand and text.startswith("~"):
        home = text.partition("/")[0]
        if (path := os.path.expanduser(text)) == text:
            raise ValueError(f"{needs}: {home} is not a known home directory; give the path itself")
        return path
    return text


def is_unset_variable(text: str) -> bool:
    """Return whether the text begins with a shell variable that was not replaced."""
    return text[:1] == "$" and (text[1:2] in ("_", "{", "(") or text[1:2].isalnum())


def _scheme(text: str) -> str:
    """Return the scheme of an address, such as `s3://`; empty if there is none."""
    scheme, is_there, rest = text.partition(":/")
    is_one = scheme[:1].isalpha() and all(c.isalnum() or c in "+.-" for c in scheme)
    if not is_there or not is_one or len(scheme) == 1:
        return ""
    return f"{scheme}:/{'/' if rest.startswith('/') else ''}"


def safe_open(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open a plain file of this user, under a name that Rallypoint chose; return its descriptor.

    `flags` are those of os.open; with O_EXCL the file is new. Raises OSError: EEXIST with O_EXCL if
    there is anything, ELOOP for a link, ENXIO, EISDIR or EPERM for anything but a plain file of
    this user. Raises ValueError for O_TRUNC without O_EXCL.
    """
    if flags & os.O_TRUNC and not flags & os.O_EXCL:
        raise ValueError("what is there would be emptied before it is looked at")
    fd = os.open(path, flags | os.O_NOFOLLOW | _ALWAYS, mode)
    status = os.fstat(fd)
    # A file server may give a new file to another user than this one.
    if flags & os.O_EXCL or (stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()):
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "something of another kind or user is there", path)


def put_whole(path: str, draft: str, data: bytes, mode: int = 0o600, *, sync: bool = False) -> None:
    """Replace a file atomically by one with this content, through a new file `draft`. Blocks.

    With `sync` the content is on the disk before the file is replaced. Raises OSError; then the
    file has not changed, and no draft of this call is left. A draft that exists already is such an
    error.
    """
    fd = safe_open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(fd)
        os.replace(draft, path)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass
        raise


def open_named(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file, pipe or device that a person named; return its descriptor. Raises OSError.

    A new file gets the user's umask. ENXIO is raised for writing to a pipe without a reader.
    Writing to a pipe blocks, unless `flags` has O_NONBLOCK.
    """
    fd = os.open(path, flags | _ALWAYS, mode)
    if not flags & os.O_NONBLOCK:
        os.set_blocking(fd, True)
    return fd


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data to the descriptor. Raises OSError; a part of it may be written then."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def prove_writable(directory: str, block: bytes) -> None:
    """Write a block to a temporary file that reaches the disk, to detect a full disk.

    Blocks; raises OSError. The file is removed.
    """
    path = os.path.join(directory, f".rallypoint-{os.urandom(8).hex()}")
    fd = safe_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.unlink(path)
        write_all(fd, block)
        os.fsync(fd)
    finally:
        os.close(fd)


def make_pipe(path: Path) -> int:
    """Make a named pipe of mode 0600 under a free name, and open both of its ends.

    Returns one non-blocking descriptor for both ends, so that reading it never meets an end of
    file. Raises OSError.
    """
    os.mkfifo(path, 0o600)
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | _ALWAYS)
    except BaseException:
        os.unlink(path)
        raise


def make_private_dir(stem: str) -> str:
    """Make a directory of mode 0700, named `stem` and a random ending, and return its path.

    Raises OSError.
    """
    while True:
        path = stem + os.urandom(4).hex()
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path


def remove_tree(path: str) -> None:
    """Remove a directory that Rallypoint made, with its content, as far as possible.

    Never raises.

    Usually there are plain files and directories only. Then nothing is imported: shutil would take
    longer than the removal, at the end of each job.
    """
    try:
        for place, directories, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(os.path.join(place, name))
            for name in directories:
                os.rmdir(os.path.join(place, name))
        os.rmdir(path)
    except OSError:
        if os.path.lexists(path):
            _remove_otherwise(path)


def _remove_otherwise(path: str) -> None:
    try:
        from shutil import rmtree
    except OSError:
        return  # Without a free descriptor not even the import works.
    rmtree(path, ignore_errors=True)


def why_not_private(
    status: os.stat_result, what: str, path: str, *, not_a_file: str, not_yours: str
) -> str | None:
    """Return why a file is not private to this user, with the fix; None if it is.

    A private file is a regular file that no other user may use: its content decides who takes part
    in a job.

    `status` is that of an open descriptor: a name may lead elsewhere the next time. `not_a_file` is
    the fix if it is no regular file, `not_yours` the fix if it belongs to another user; `what` is
    the file's kind.
    """
    from shlex import quote  # few are refused

    name = path if path.isprintable() else ascii(path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        return f"the {what} {name} is {kind}: {not_a_file}"
    if status.st_uid != os.geteuid():
        return (
            f"the {what} {name} belongs to user {status.st_uid}, not to you "
            f"(user {os.geteuid()}): {not_yours}"
        )
    if status.st_mode & _OTHERS:
        return (
            f"the {what} {name} is open to other users (mode "
            f"{stat.S_IMODE(status.st_mode):04o}): run `chmod 600 {quote(name)}`"
        )
    return None
