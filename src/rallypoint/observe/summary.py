"""The summary of a job as one agent saw it: the schema of `--json-summary`, and the file.

Durations are seconds; a time is text in ISO 8601, UTC. What is not known is null, or absent from
`phases`. Fields may be added within a `schema` number, none removed or given another meaning.
"""

from __future__ import annotations

import os
import stat

import msgspec
from msgspec import Struct

from rallypoint.core.watch.goodput_view import TimePart
from rallypoint.errors import UsageError
from rallypoint.files import safe_open

SCHEMA = 1


class CauseSummary(Struct, frozen=True):
    """The worker whose failure came first: as in the last line of `--log-format json`."""

    time: str
    node: str
    rank: int
    local_rank: int
    role: str
    pid: int | None
    exit_code: int | None
    signal: str | None
    message: str
    detail: tuple[str, ...]
    detail_is_traceback: bool
    log_file: str


class ProgressSummary(Struct, frozen=True):
    """How far the furthest worker of this node was in a round; null: that was not told."""

    step: int
    total: int | None
    loss: float | None
    tokens: int | None


class RoundSummary(Struct, frozen=True):
    """One round that this node took part in.

    `began_s` and `ended_s` count from the agent's start. `ended_by` is failure, loss, drain or
    growth; else how the job ended.
    """

    round: int
    nodes: int
    workers: int
    node_rank: int
    first_rank: int
    restart_count: int
    why: str
    ended_by: str
    ended_why: str
    began_s: float
    ended_s: float | None
    phases: dict[str, float]
    progress: ProgressSummary | None = None
    """Null: no worker of this node has told any."""


class RestartSummary(Struct, frozen=True):
    """Workers were started again for `round`. `counted`: it was paid from the budget."""

    round: int
    kind: str
    reason: str
    counted: bool


class GoodputSummary(Struct, frozen=True):
    """Where the time of the whole job went, on all nodes, as its coordinator has it. Null: no steps
    are known, or there was no fault. `parts` add up to `wall_s`."""

    wall_s: float
    useful_s: float | None
    useful_share: float | None
    parts: tuple[TimePart, ...]
    furthest_step: int | None
    lost_steps: int
    faults: int
    mean_s_between_faults: float | None
    spare_node_s: float


class Summary(Struct, frozen=True):
    """How a job ended for one agent. `outcome` is succeeded, failed, timed out, infrastructure,
    cancelled, preempted or usage; `cause` is null where no worker's failure ended it.
    `no_progress`: it has failed because restarting did not help (`--max-no-progress`)."""

    outcome: str
    exit_code: int
    reason: str
    run_id: str
    node: str
    host: str
    started: str
    elapsed_s: float
    round: int
    restarts_used: int
    max_restarts: int
    rounds: tuple[RoundSummary, ...]
    restarts: tuple[RestartSummary, ...]
    cause: CauseSummary | None
    collateral: int
    no_progress: bool
    events_lost: int
    versions: dict[str, str]
    goodput: GoodputSummary | None = None
    """Null: this node was not told, as by a coordinator of an older version or by a handler."""
    schema: int = SCHEMA


def _is_own_output(path: str) -> bool:
    for fd in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return True
        except OSError:
            pass  # It is not there yet, or this stream is closed.
    return False


class SummaryFile:
    """A file that gets a summary at once and whole, or stays as it was."""

    def __init__(self, path: str) -> None:
        """Tries whether it can be written, and leaves no trace. Raises UsageError."""
        self._target = os.path.realpath(path)
        try:
            mode = os.stat(self._target).st_mode if os.path.lexists(self._target) else stat.S_IFREG
            if not stat.S_ISREG(mode):
                raise UsageError(f"--json-summary {path}: exists and is not a regular file")
            if _is_own_output(self._target):
                raise UsageError(
                    f"--json-summary {path}: this command's own output goes there, and would be "
                    "lost: name another file"
                )
            draft, fd = self._open_draft()
            os.close(fd)
            os.unlink(draft)
        except OSError as error:
            text = f"--json-summary {path}: can't be written: {error.strerror}"
            raise UsageError(text) from error

    def write(self, summary: Summary) -> None:
        """Raises OSError when there is no room any more; then nothing is left behind."""
        import json  # only now: a start has no use for it

        # ASCII: no text is read as anything else, also with bytes in it that are no UTF-8.
        text = json.dumps(msgspec.to_builtins(summary), indent=2).replace("\x7f", "\\u007f")
        draft, fd = self._open_draft()
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(f"{text}\n".encode())
                file.flush()
                os.fsync(fd)
            os.replace(draft, self._target)
        except OSError:
            try:
                os.unlink(draft)
            except OSError:
                pass
            raise

    def _open_draft(self) -> tuple[str, int]:
        folder, name = os.path.split(self._target)
        draft = os.path.join(folder, f".{name[:200]}.{os.urandom(8).hex()}")
        # It becomes what the person named, so its mode is as their umask says.
        return draft, safe_open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
