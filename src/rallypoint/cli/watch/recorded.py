"""A file of `--history`, read in place of asking a job: `rallypoint events FILE`, `status FILE`."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from msgspec.structs import replace

from rallypoint.cli.parser import Command, Scanned
from rallypoint.cli.values import Given
from rallypoint.core.round_record import ROUNDS_SHOWN
from rallypoint.core.text import shown
from rallypoint.core.watch.history_file import NoHistoryError, Recorded, read
from rallypoint.core.watch.job_view import JobView
from rallypoint.errors import UsageError

SIZE_MAX = 1 << 30
"""The largest file that is read, in bytes."""


def is_history(where: Given | None) -> bool:
    """Return whether a person means a file of `--history`, and no endpoint.

    The word is a file's name if there is such a file, or it ends with `.jsonl`.
    """
    if where is None or "\0" in where.text:
        return False
    return os.path.isfile(where.text) or where.text.endswith(".jsonl")


def refuse_options(command: Command, scanned: Scanned, others: Sequence[str]) -> None:
    """Raise UsageError for options without a meaning for a file.

    They are the options that name a job's place, and `others`.
    """
    where = [row.flag for _, rows in command.groups[1:] for row in rows]
    for flag in (*where, *others):
        if (given := scanned.get(flag)) is not None:
            raise given.wrong("a file of --history is read, and no job is asked: leave it out")


def read_history(path: str) -> Recorded:
    """Read a file of `--history`. Blocks. Raises UsageError."""
    try:
        # Opening a pipe would wait for its writer.
        _check_type(path, os.stat(path).st_mode)
        with open(path, "rb") as file:
            _check_type(path, os.fstat(file.fileno()).st_mode)
            data = file.read(SIZE_MAX + 1)
        if len(data) > SIZE_MAX:
            raise UsageError(f"{shown(path)}: is larger than 1 GiB: cut it, at the end of a line")
        return read(data.split(b"\n"))
    except OSError as error:
        raise UsageError(f"{shown(path)}: can't be read: {error.strerror}") from error
    except NoHistoryError as error:
        raise UsageError(f"{shown(path)}: {error}") from error


def _check_type(path: str, mode: int) -> None:
    """Raise UsageError unless the file is a regular one."""
    devices = {stat.S_IFIFO: "a pipe", stat.S_IFDIR: "a directory", stat.S_IFSOCK: "a socket"}
    if not stat.S_ISREG(mode):
        kind = devices.get(stat.S_IFMT(mode), "a device")
        raise UsageError(f"{shown(path)}: is no file that --history has written, but {kind}")


def view_in(recorded: Recorded) -> JobView | None:
    """Return the view of the job at the file's last status, with its last rounds.

    None: the file has no status.
    """
    if recorded.status is None:
        return None
    view, known = recorded.status.view, {past.round for past in recorded.rounds}
    ending = [past for past in view.past if past.round not in known]
    return replace(view, past=tuple([*recorded.rounds, *ending][-ROUNDS_SHOWN:]))
