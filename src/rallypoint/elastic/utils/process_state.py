"""The state of a process, from the kernel."""

from __future__ import annotations


def read_proc_state(pid: int) -> str | None:
    """Return the state letter of a process that ps shows: R, S, D, Z, ...

    None if there is no such process, or it can't be read.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name of a program may have spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return fields[0].decode() if fields else None


def is_uninterruptible_state(state: str | None) -> bool:
    """Return whether a process in this state waits in the kernel, where no signal reaches it."""
    return state is not None and state.startswith("D")
