"""The slot of this process in the shared memory of its agent (`wire/shm.py`).

The process finds its slot by the environment, claims it once, and writes its step and its phase
there.

The first process of a worker that reports owns the slot. A process that it forks or starts finds
the slot taken, and its reports are ignored until the owner is dead. So data loaders do not report
for their parent, and a shell may run a script.
"""

from __future__ import annotations

import os
from mmap import mmap
from time import monotonic_ns

from rallypoint.files import open_named
from rallypoint.wire import shm_words as at


class Shm:
    """The shared memory of the agent, and the slot that this process owns, if any."""

    def __init__(self, words: memoryview, folder: str, rank: int) -> None:
        self.words = words
        self._folder, self._rank = folder, rank
        base = at.first_word(rank)
        slot = words[base : base + at.SLOT_WORDS]
        self.slot: memoryview | None = slot if _claim(slot) else None
        """The part of the shared memory where this process reports; None if it does not report for
        its worker."""

    @property
    def wake_up_path(self) -> str:
        """The path of the named pipe by which the agent is told to look at the shared memory."""
        return os.path.join(self._folder, "wake-up")

    def notify(self, what: str) -> None:
        """Wake the agent to look at the shared memory. Never blocks, and never fails."""
        try:
            fd = open_named(self.wake_up_path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return
        try:
            os.write(fd, f"{what} {self._rank}\n".encode())
        except OSError:
            pass
        finally:
            os.close(fd)

    def offer_stacks(self) -> None:
        """Allow the agent to request the stacks of all threads, in a file beside the shared memory.

        May be called again; does nothing in a process that does not report for its worker.
        """
        if self.slot is not None and not self.slot[at.STACKS]:
            from rallypoint.worker.stacks import offer_stacks

            path = os.path.join(self._folder, f"stacks_{self._rank}")
            self.slot[at.STACKS] = offer_stacks(path)


_found = False
_shm: Shm | None = None


def shm() -> Shm | None:
    """Return the agent's shared memory, looked up once; None: this process finds none.

    For example outside of rallypoint, after the round, on another machine, or if the agent has
    another version.
    """
    global _found, _shm
    if not _found:
        _shm = _find()
        _found = True
    return _shm


def own_shm() -> Shm | None:
    """Return the shared memory if this process reports for its worker, else None."""
    found = shm()
    return found if found is not None and found.slot is not None else None


def _find() -> Shm | None:
    path, rank = shm_path(), local_rank()
    if not path:
        return None
    try:
        fd = open_named(path, os.O_RDWR)
        try:
            shm = mmap(fd, 0)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None  # The round has ended meanwhile, or this is another machine.
    if len(shm) < at.shm_bytes(0) or len(shm) % at.WORD_BYTES:
        return None
    words = memoryview(shm).cast("q")
    magic, version, workers = words[0], words[1], words[2]
    # An agent of another version may have laid it out otherwise: better to say nothing.
    known = (magic, version) == (at.MAGIC, at.VERSION) and len(shm) >= at.shm_bytes(workers)
    if not known or not 0 <= rank < workers:
        return None
    return Shm(words, os.path.dirname(path), rank)


def _claim(slot: memoryview) -> bool:
    pid, owner = os.getpid(), slot[at.OWNER]
    if owner not in (0, pid) and os.path.exists(f"/proc/{owner}"):
        return False
    slot[at.OWNER] = pid
    # What an owner before this one could do, this one can't yet.
    slot[at.STACKS] = slot[at.HOLDS] = slot[at.PHASE] = 0
    return True


def shm_path() -> str:
    """Return the path of this round's shared memory (RALLYPOINT_SHM); empty: there is none."""
    return os.environ.get("RALLYPOINT_SHM", "")


def local_rank() -> int:
    """Return the slot number of this worker; -1 if the environment has none.

    It is RALLYPOINT_LOCAL_RANK, or LOCAL_RANK without that. LOCAL_RANK is no slot number where each
    worker sees one device only (`--virtual-local-rank`).
    """
    text = os.environ.get("RALLYPOINT_LOCAL_RANK") or os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isascii() and text.isdigit() else -1


def may_hold_sigterm() -> bool:
    """Return whether SIGTERM may be held back: yes, unless RALLYPOINT_HOLD_SIGTERM is 0."""
    return os.environ.get("RALLYPOINT_HOLD_SIGTERM", "1") != "0"


_STEP, _PROGRESS_AT = at.STEP, at.PROGRESS_AT
_slot: memoryview | None = None
"""The slot of this worker, once the agent knows that it reports progress; None: not yet."""


def progress(
    step: int, total: int | None = None, loss: float | None = None, tokens: int | None = None
) -> None:
    """Report that this worker has completed the step with the number `step`.

    Cheap enough for every step.

    `--hang-timeout` watches these calls: call it where the script would not arrive if it hung. The
    first call also lets the agent request the stacks of this process's threads.

    `total` is the number of steps, `tokens` the number of tokens so far. These and `loss` may be
    omitted, and stay as they were last reported. `loss` may be anything that becomes a float; a
    tensor on a device makes the call wait for the device. Under `rallypoint run`, raises TypeError,
    ValueError or OverflowError for a value that is no number.
    """
    slot = _slot
    if slot is None:
        _begin(step, total, loss, tokens)
        return
    try:
        slot[_STEP] = step
    except (TypeError, ValueError):
        slot[_STEP] = _whole(step)
    if total is not None or loss is not None or tokens is not None:
        _tell_more(slot, total, loss, tokens)
    slot[_PROGRESS_AT] = monotonic_ns()


def _begin(step: int, total: int | None, loss: float | None, tokens: int | None) -> None:
    global _slot
    found = own_shm()
    if found is None or found.slot is None:
        return
    found.offer_stacks()
    found.slot[_STEP] = _whole(step)
    _tell_more(found.slot, total, loss, tokens)
    found.slot[_PROGRESS_AT] = monotonic_ns()
    _slot = found.slot
    found.notify("progress")


def _tell_more(slot: memoryview, total: int | None, loss: float | None, tokens: int | None) -> None:
    if total is not None:
        slot[at.TOTAL] = _whole(total)
    if loss is not None:
        # The word 0 says that none was told.
        slot.cast("B").cast("d")[at.LOSS] = float(loss) or -0.0
    if tokens is not None:
        slot[at.TOKENS] = _whole(tokens)


def _whole(step: float) -> int:
    """Return the number as an integer that fits into a word, for any type of number."""
    return max(min(int(step), at.MAX_WORD), -at.MAX_WORD)


class phase:  # noqa: N801  # It is used as a function is: `with phase("evaluation"):`.
    """A block of the script that may take longer than a step, as a context manager.

    With `with phase("evaluation"):`, `--hang-timeout 300,evaluation=3600` applies the limit of 3600
    s until the block ends. The time starts anew at both ends of the block. Phases may be nested,
    and may be in any thread: the phase that began last counts, for the whole worker. The object may
    be used again.

    Raises ValueError for a `name` that is longer than 24 bytes, has characters other than letters,
    digits, `_` and `-`, or has neither a letter nor a digit. So it does for `start`, the phase
    before the first step. Never raises because there is no agent.
    """

    def __init__(self, name: str) -> None:
        if not is_phase_name(name) or name == "start":
            needs = "needs 1 to 24 letters, digits, _ or -, with a letter or digit, and not start"
            raise ValueError(f"phase({name!r}): {needs}")
        self.name = name

    def __enter__(self) -> None:
        _phases.append(self.name)
        _tell_phase()

    def __exit__(self, *_error: object) -> None:
        for place in reversed(range(len(_phases))):
            if _phases[place] == self.name:
                del _phases[place]
                break
        _tell_phase()


_phases: list[str] = []
"""The current phases of this process, in the order in which they began."""
_has_told_phase = False


def is_phase_name(name: str) -> bool:
    """Return whether a name has the form of a phase's, `start` too: it fits into shared memory."""
    plain = name.replace("_", "").replace("-", "")
    return name.isascii() and plain.isalnum() and len(name) <= at.PHASE_BYTES


def _tell_phase() -> None:
    global _has_told_phase
    found = own_shm()
    if found is None or found.slot is None:
        return
    found.offer_stacks()
    name = _phases[-1] if _phases else ""
    # Before the name: who reads half of it sees a phase that has just begun.
    found.slot[at.PHASE_AT] = monotonic_ns()
    place = at.WORD_BYTES * at.PHASE
    found.slot.cast("B")[place : place + at.PHASE_BYTES] = name.encode().ljust(
        at.PHASE_BYTES, b"\0"
    )
    if not _has_told_phase:
        _has_told_phase = True
        found.notify("phase")


def _forget() -> None:
    global _found, _shm, _slot, _has_told_phase
    _found, _shm, _slot, _has_told_phase = False, None, None, False
    _phases.clear()


os.register_at_fork(after_in_child=_forget)
