"""The state of a process, from the kernel."""

from __future__ import annotations


def read_proc_state(pid: int) -> str | None:
    """Return one letter, as ps shows it: R, S, D, Z, ...; None where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name of a program may have spaces and parentheses.
    fields = stat.rpartition(b")")[2].split()
    return fields[0].decode() if fields else None


def is_uninterruptible_state(state: str | None) -> bool:
    """Whether it is that of a process which waits within the kernel, and that no signal reaches."""
    return state is not None and state.startswith("D")
