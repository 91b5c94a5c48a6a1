"""A rank of the job of goodput.py: it does steps in step with the others, and notes when.

goodput_worker.py FOLDER STEP_S

Notes are lines `WHAT SECONDS [STEP]` in a file of its own, on the clock that all processes of a
machine share. Every tenth step is a checkpoint. FOLDER/fault tells a rank what it is to do wrong.
"""

import time

began_at = time.monotonic()

import mmap  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import struct  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from types import FrameType  # noqa: E402

from rallypoint import worker  # noqa: E402

EVERY = 10
LOOK_S = 0.003
folder, step_s = Path(sys.argv[1]), float(sys.argv[2])
rank, world, round_, node = (
    os.environ[name] for name in ("RANK", "WORLD_SIZE", "RALLYPOINT_ROUND", "RALLYPOINT_NODE_ID")
)
notes = os.open(
    folder / "notes" / f"{round_} {rank} {node} {os.getpid()}", os.O_WRONLY | os.O_CREAT
)


def note(what: str, at: float | None = None, step: int = -1) -> None:
    """One line, written at once."""
    os.write(notes, f"{what} {time.monotonic() if at is None else at!r} {step}\n".encode())


def told_to_stop(_number: int, _frame: FrameType | None) -> None:
    """As a trainer that has nothing to save."""
    note("stop")
    os._exit(0)


signal.signal(signal.SIGTERM, told_to_stop)
note("start", began_at)
checkpoint = folder / "checkpoint"
first = int(checkpoint.read_text()) + 1 if checkpoint.exists() else 0
shared = os.open(folder / f"steps {round_}", os.O_RDWR | os.O_CREAT)
os.ftruncate(shared, 8 * int(world))
steps = mmap.mmap(shared, 8 * int(world))


def wait_others(step: int) -> None:
    """As a collective does: until all ranks are here. Steps are kept with 1 added: 0 is none."""
    struct.pack_into("q", steps, 8 * int(rank), step + 1)
    while min(struct.unpack_from(f"{world}q", steps)) <= step:
        time.sleep(LOOK_S)


def save(step: int) -> None:
    """By rank 0, at once and whole."""
    if rank == "0":
        (folder / "checkpoint.new").write_text(str(step))
        (folder / "checkpoint.new").rename(checkpoint)


def go_wrong(step: int) -> None:
    """If that is wanted of this rank now."""
    order = folder / f"fault {round_} {rank}"
    if order.exists():
        note("fault", step=step)
        if order.read_text() == "exception":
            raise RuntimeError("out of cheese")
        while True:
            time.sleep(60.0)


def is_after(what: str, wanted: bool, step: int, least: int = 0) -> bool:
    """Whether this is the step after which all ranks do it. The first rank that sees a wish sets
    the step, two ahead: until then each rank has waited for that one, and knows it, too."""
    agreed = folder / f"{what} {round_}"
    if wanted and not agreed.exists():
        agreed.with_suffix(f".{rank}").write_text(str(max(step + 2, least)))
        agreed.with_suffix(f".{rank}").rename(agreed)
    return agreed.exists() and step >= int(agreed.read_text())


step = first
end = folder / f"end {round_}"
while True:
    go_wrong(step)
    time.sleep(step_s)
    wait_others(step)
    note("step", step=step)
    worker.progress(step)
    leaves = is_after("asked", worker.should_restart_at_checkpoint(), step)
    has_end = end.exists()
    ends = is_after("last", has_end, step, int(end.read_text()) if has_end else 0)
    if step % EVERY == EVERY - 1 or leaves:
        save(step)
        worker.checkpoint_saved(step)
    if leaves or ends:
        break
    step += 1
note("exit")
