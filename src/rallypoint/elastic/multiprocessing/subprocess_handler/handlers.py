"""The function that starts a program as a process."""

from __future__ import annotations

from collections.abc import Mapping

from rallypoint.config import NumaOptions
from rallypoint.elastic.multiprocessing.subprocess_handler.subprocess_handler import (
    SubprocessHandler,
)


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[object, ...],
    env: Mapping[str, str],
    stdout: str | None,
    stderr: str | None,
    local_rank_id: int,
    numa_options: NumaOptions | None = None,
) -> SubprocessHandler:
    """Start the program, and return its handler. Raises as `SubprocessHandler` does."""
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)
