"""Whether the kernel has killed a process of this container for lack of memory.

Apart from `failures.py`, which most jobs never import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


class OomWatch:
    """Counts out-of-memory kills in our cgroup, its children included, since this was made.

    The count covers the whole container, so it is a hint about a worker that died of SIGKILL, not a
    proof. Where no counter can be read, the answer is no.
    """

    def __init__(self, files: Sequence[str] | None = None) -> None:
        """`files`: counters to read instead of the cgroup's; the first that is readable counts."""
        self._files = tuple(files) if files is not None else _counter_files()
        self._before = self._count()

    def rose(self) -> bool:
        """Whether there was a kill since this was made, or since the last `rearm`."""
        return self._count() > self._before

    def rearm(self) -> None:
        """Start counting from now, as at the start of a round."""
        self._before = self._count()

    def _count(self) -> int:
        for path in self._files:
            count = _read_count(path)
            if count is not None:
                return count
        return 0


def _counter_files() -> tuple[str, ...]:
    """`memory.events` of cgroup v2 and `memory.oom_control` of v1, ours before the root's."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    files = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            root, name = "/sys/fs/cgroup", "memory.events"
        elif "memory" in controllers.split(","):
            root, name = "/sys/fs/cgroup/memory", "memory.oom_control"
        else:
            continue
        # Within a container the path may be the host's; then only the root is to be seen.
        files += [os.path.join(root + path, name), os.path.join(root, name)]
    return tuple(files)


def _read_count(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        return None
    return None
