"""The cost of a worker's failure, and the point at which restarting does not help (behaviour A2).

Pure.

The ledger is that of the whole job. Only worker failures are charged: nodes that are lost, drained
or join late never cost budget.

A crash loop is equal failures, one after the other, of a job that gets no further:

    after_failure(loop, failure, reach) -> loop

Two failures are equal when their workers ended in the same way (exit code, signal, hang) and with
the same last line, numbers in it aside. A job has got further when its workers have reported a
larger step than ever before; where they report none, when they lived for a minute. The first
failure says nothing of the next, so it is followed by a restart at once. Each equal one after it is
paused for twice as long, and after `--max-no-progress` of them the job ends.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct, field

from rallypoint.core.events import Timer, TimerKind
from rallypoint.core.model import SharedSettings
from rallypoint.core.text import UNGUARDED, named, signal_name
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.hashes import blake2s

if TYPE_CHECKING:
    from re import Pattern

BACKOFF_MAX_S = 60.0
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
"""The pause in seconds before the restart after the second equal failure, doubled with each one,
and its maximum."""
HANG = "hang"
LIVED_S = 60.0
"""The lifetime in seconds that counts as progress for workers that report no steps."""
MAX_LINE = 400
"""The most characters of the line by which failures are compared: the first one of the message
(such as an exception), else the last one of the detail (such as the output)."""
_LONGEST = 30
"""The most doublings, so that no power overflows."""


class ComparedExit(Struct, frozen=True, array_like=True):
    """The parts of a worker's end that decide whether two failures are equal."""

    how: str
    line: str


class CrashLoop(Struct, frozen=True, array_like=True):
    """A row of equal failures without progress in between: their number, and how they ended."""

    count: int = 0
    step: int = -1
    """The furthest step that was reported before the last failure; -1: there was none."""
    ending: ComparedExit | None = None


NO_LOOP = CrashLoop()
"""The state before any failure."""


class StepReach(Struct, frozen=True):
    """The progress of the job at the end of a round."""

    step: int
    """The largest step that was ever reported in this life of the job; -1: there was none."""
    lived_s: float
    """The lifetime of the round's workers, in seconds; infinite: it is not known when they
    started."""


def after_failure(loop: CrashLoop, failure: WorkerExit, reach: StepReach) -> CrashLoop:
    """Return the crash loop after a round that ended by this failure."""
    ending = ending_of(failure)
    repeats = loop.ending is not None and is_same(loop.ending, ending)
    count = loop.count + 1 if repeats and not _is_further(loop, reach) else 1
    return CrashLoop(count, max(loop.step, reach.step), ending)


def after_another_end(loop: CrashLoop, reach: StepReach, *, is_planned: bool) -> CrashLoop:
    """Return the crash loop after a round that ended without a worker's fault.

    A planned end leaves the loop as it was, unless the job made progress. Any other end begins the
    count anew.
    """
    if is_planned and not _is_further(loop, reach):
        return loop
    return CrashLoop(step=max(loop.step, reach.step))


def _is_further(loop: CrashLoop, reach: StepReach) -> bool:
    return reach.step > loop.step if reach.step >= 0 else reach.lived_s >= LIVED_S


def pause_s(loop: CrashLoop) -> float:
    """Return the pause in seconds before the next restart: 0 unless a failure has repeated."""
    if loop.count < 2:
        return 0.0
    return min(PAUSE_S * 2.0 ** min(loop.count - 2, _LONGEST), PAUSE_MAX_S)


def is_hopeless(loop: CrashLoop, most: int) -> bool:
    """Return whether the loop has reached `most` equal failures in a row (0: never)."""
    return 0 < most <= loop.count


def describe_loop(loop: CrashLoop) -> str:
    """Return the loop in words: `the same failure 3 times at step 120`; empty until one repeats."""
    if loop.count < 2:
        return ""
    where = f" at step {loop.step}" if loop.step >= 0 else ", each within a minute of the start"
    if loop.step >= 0 and loop.ending is not None and loop.ending.how == HANG:
        where = f", the job being at step {loop.step}"  # The rank that hung was behind.
    return f"the same failure {loop.count} times{where}"


def is_same(first: ComparedExit, second: ComparedExit) -> bool:
    """Return whether two failures are equal, as far as can be told."""
    if first.how != second.how:
        return False
    return first.line == second.line or normalised(first.line) == normalised(second.line)


def digest(failure: WorkerExit) -> str:
    """Return a short digest, which is equal for equal failures, as far as can be known."""
    ending = ending_of(failure)
    said = f"{ending.how}\0{normalised(ending.line)}"
    return blake2s(said.encode("utf-8", "replace"), digest_size=8).hexdigest()


def ending_of(failure: WorkerExit) -> ComparedExit:
    """Return the parts of a failure by which it is compared with others."""
    if failure.code is None and failure.signal is None and failure.reason:
        return ComparedExit(HANG, "")  # How far it was is compared as progress.
    if failure.signal is not None:
        how = signal_name(failure.signal)
    else:
        how = f"exit code {failure.code}"
    return ComparedExit(how, _last_line(failure))


def _last_line(failure: WorkerExit) -> str:
    """Return the first line of the message, else the last line of the detail, else the reason."""
    lines = failure.message.strip().splitlines() or failure.detail.strip().splitlines()[-1:]
    return (lines[0] if lines else failure.reason)[:MAX_LINE]


def normalised(line: str) -> str:
    """Return the text without parts that differ between two runs of one program.

    Addresses, sizes, times, pids, ranks and the like become `#`, also in the parts of a path; a
    random part of a path is `#` as a whole.
    """
    return _number().sub("#", _size().sub("#", _path_part().sub("#", line)))


# Compiled at their first use: most jobs never compare two failures.


@cache
def _path_part() -> Pattern[str]:
    """Return the pattern of a random part of a path, after a slash.

    It ends with eight or more hexadecimal digits, or with what Python's tempfile makes.
    """
    import re

    random = r"[\w.-]*?(?:[0-9a-f]{8,}|tmp\w{8})"
    return re.compile(rf"(?<=/){random}(?=[/\s'\":,;.)]|$)")


@cache
def _size() -> Pattern[str]:
    """Return the pattern of a size, so that `20.00 MiB` and `1.2 GiB` are equal."""
    import re

    return re.compile(r"[-+]?\b\d+(?:\.\d+)?\s?(?:[KMGTkmgt]i?B|bytes|B)\b")


@cache
def _number() -> Pattern[str]:
    """Return the pattern of a number.

    An address; a hexadecimal number of eight digits or more, or with dashes as of a UUID; or a
    decimal one, whatever stands around it.
    """
    import re

    address = r"0[xX][0-9a-fA-F]+"
    uuid = r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    long = r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"
    decimal = r"(?:(?<![\w.])[-+])?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
    return re.compile(f"{address}|{uuid}|{long}|{decimal}")


class Restart(Struct, frozen=True):
    """The decision to restart the workers, after a pause of `delay_s`."""

    delay_s: float
    reason: str
    repeats: str = ""
    """The crash loop in words, such as `the same failure 3 times at step 120`; empty: nothing
    repeated."""


class GiveUpJob(Struct, frozen=True):
    """The decision to end the job instead of restarting the workers."""

    reason: str
    no_progress: str = ""
    """The crash loop in words, if it is the reason: `the same failure 3 times at step 120`; else
    empty."""


RestartDecision = Restart | GiveUpJob


class Ledger(Struct):
    """The restarts charged to the budget: `total` so far, and the numbers of those that count."""

    total: int = 0
    entries: list[int] = field(default_factory=list)


def decide(
    ledger: Ledger, settings: SharedSettings, failure: WorkerExit, loop: CrashLoop = NO_LOOP
) -> RestartDecision:
    """Return whether the workers restart after this failure, or the job is given up, and why.

    `loop` is the crash loop with this failure. The ledger is not changed.
    """
    code, budget, used = failure.code, settings.max_restarts, len(ledger.entries)
    if failure.message.startswith(UNGUARDED):
        return GiveUpJob("a restart can't help")
    if code is not None and code in settings.no_restart_exit_codes:
        return GiveUpJob(f"exit code {code} is not to be retried")
    said, most = describe_loop(loop), settings.max_no_progress
    if is_hopeless(loop, most):
        often = said or "it has failed once"
        return GiveUpJob(
            f"{often}, restarting does not help ({named.max_no_progress} {most})", often
        )
    if used >= budget:
        if budget == 0:
            return GiveUpJob(f"no restarts were allowed ({named.max_restarts} 0)")
        window = settings.restart_window_s
        within = f" within {window:g} s" if window else ""
        all_used = "the only restart was" if budget == 1 else f"all {budget} restarts were"
        return GiveUpJob(f"{all_used} used{within}")
    backoff_s = 0.0
    if settings.restart_backoff_s:
        backoff_s = min(settings.restart_backoff_s * 2.0 ** min(used, 30), BACKOFF_MAX_S)
    delay_s = max(backoff_s, pause_s(loop))
    return Restart(delay_s, f"restart {used + 1} of {budget}", said)


def charge(
    ledger: Ledger, settings: SharedSettings, failure: WorkerExit, loop: CrashLoop = NO_LOOP
) -> RestartDecision:
    """Decide about one failure by `decide`, and charge it to the budget if the workers restart."""
    decision = decide(ledger, settings, failure, loop)
    if isinstance(decision, Restart):
        ledger.total += 1
        ledger.entries.append(ledger.total)
    return decision


def describe(decision: Restart, cause: str) -> str:
    """Return the sentence about a restart.

    For example `restart 1 of 3 in 2 s: rank 0 (node a, local rank 0) exited with code 1`. With an
    empty `cause`, which is known already: `restart 3 of 9 in 2 s: the same failure 3 times at step
    120`.
    """
    pause = f" in {decision.delay_s:g} s" if decision.delay_s else ""
    why = "; ".join(filter(None, (cause, decision.repeats)))
    return f"{decision.reason}{pause}: {why}" if why else f"{decision.reason}{pause}"


def timers_wanted(ledger: Ledger, settings: SharedSettings) -> dict[Timer, float]:
    """Return the timers after which charged restarts no longer count, with lengths in seconds.

    None without a restart window.
    """
    if not settings.restart_window_s:
        return {}
    kind, length_s = TimerKind.CHARGE, settings.restart_window_s
    return {Timer(kind, id=str(entry)): length_s for entry in ledger.entries}


def forget(ledger: Ledger, entry_id: str) -> None:
    """Stop counting the restart with this number: its window has passed. Safe to apply twice."""
    ledger.entries = [entry for entry in ledger.entries if str(entry) != entry_id]
