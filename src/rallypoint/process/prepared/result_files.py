"""What function workers return, on its way back: each in an anonymous file in memory.

Nobody waits for anybody: a worker leaves a result of any size and exits, and nothing of it passes
through the agent's loop. It is bounded by memory only.
"""

from __future__ import annotations

import os

from rallypoint.errors import UsageError


def memory_file(name: str) -> int:
    """A new anonymous file (close-on-exec, above 2)."""
    import fcntl

    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    if fd > 2:
        return fd
    raised = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return raised


class ResultFiles:
    """One per worker of a round: `open` each, then `load` or `close` all. What is left of a round
    that nobody asks about is thrown away with this object."""

    def __init__(self) -> None:
        self._fds: dict[int, int] = {}

    def open(self, local_rank: int) -> int:
        """The descriptor for the worker of this local rank; it stays ours to close."""
        self._fds[local_rank] = memory_file("rallypoint-result")
        return self._fds[local_rank]

    def load(self) -> dict[int, object]:
        """What each worker has left, by local rank; None where it left nothing. Closes all.

        To be called when all have exited with code 0. Blocks for as long as unpickling takes.
        Raises UsageError for a result that can't be loaded here.
        """
        try:
            return {local_rank: _load(local_rank, fd) for local_rank, fd in self._fds.items()}
        finally:
            self.close()

    def close(self) -> None:
        """Throw away what was left. Safe to repeat."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def __del__(self) -> None:
        self.close()


def _load(local_rank: int, fd: int) -> object:
    import mmap
    import pickle

    if os.fstat(fd).st_size == 0:
        return None
    with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as content:
        try:
            result: object = pickle.loads(content)
        except Exception as error:
            raise UsageError(
                f"the result of local rank {local_rank} can't be unpickled here: {error}: "
                "return plain data, or import its class in this process too"
            ) from error
    return result
