"""Files that must be their user's alone: what they hold decides who takes part in a job."""

from __future__ import annotations

import os
import stat

from rallypoint.errors import AccessError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_private(
    status: os.stat_result, what: str, path: str, *, not_a_file: str, not_yours: str
) -> None:
    """Raises AccessError unless it is a regular file of this user that nobody else may use.

    `status` is that of an open descriptor: a name may lead elsewhere the next time. `not_a_file`
    and `not_yours` are the fixes for these two; `what` is the file's kind.
    """
    from shlex import quote  # few are refused

    name = path if path.isprintable() else ascii(path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a regular file"
        raise AccessError(f"the {what} {name} is {kind}: {not_a_file}")
    if status.st_uid != os.geteuid():
        raise AccessError(
            f"the {what} {name} belongs to user {status.st_uid}, not to you "
            f"(user {os.geteuid()}): {not_yours}"
        )
    if status.st_mode & _OTHERS:
        raise AccessError(
            f"the {what} {name} is open to other users (mode "
            f"{stat.S_IMODE(status.st_mode):04o}): run `chmod 600 {quote(name)}`"
        )
