"""The API by which a training script asks and informs its launcher.

Needs the standard library alone.

    from rallypoint import worker

    for step in range(start, steps):
        train(step)
        worker.progress(step)
        if agreed(worker.should_restart_at_checkpoint()):
            save(step)
            worker.checkpoint_saved(step)
            break

Outside of `rallypoint run` every call returns at once, without effect, with the values of a process
that runs alone; under torchrun the ranks are torchrun's. The calls that a training loop makes at
every step (`progress`, `drain_requested`, `should_restart_at_checkpoint`) read or write a word of
memory that is shared with the agent. All may be called from any thread. A process that a worker
starts, such as a data loader, does not report for the worker: the same calls have no effect there.

Importing this package imports nothing else; each name is imported at first use.
"""

from __future__ import annotations

from rallypoint.lazy import exports

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    from rallypoint.worker.checkpoint import (
        checkpoint_requested,
        checkpoint_saved,
        drain_requested,
        is_current,
        should_restart_at_checkpoint,
    )
    from rallypoint.worker.collectives import barrier, store
    from rallypoint.worker.environ import Context, context, get_env_variable_or_raise
    from rallypoint.worker.error_file import ErrorHandler, get_error_handler, record
    from rallypoint.worker.shm import phase, progress

__all__ = [
    "Context",
    "ErrorHandler",
    "barrier",
    "checkpoint_requested",
    "checkpoint_saved",
    "context",
    "drain_requested",
    "get_env_variable_or_raise",
    "get_error_handler",
    "is_current",
    "phase",
    "progress",
    "record",
    "should_restart_at_checkpoint",
    "store",
]

__getattr__, __dir__ = exports(
    globals(),
    {
        ".checkpoint": (
            "checkpoint_requested",
            "checkpoint_saved",
            "drain_requested",
            "is_current",
            "should_restart_at_checkpoint",
        ),
        ".error_file": ("ErrorHandler", "get_error_handler", "record"),
        ".collectives": ("barrier", "store"),
        ".shm": ("phase", "progress"),
        ".environ": ("Context", "context", "get_env_variable_or_raise"),
    },
)
