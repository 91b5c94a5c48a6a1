"""A program as a process of its own, which its caller waits for and ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from subprocess import Popen
from typing import IO

from rallypoint.config import NumaOptions
from rallypoint.errors import ParameterError
from rallypoint.files import open_named

IS_WINDOWS = sys.platform == "win32"


class SubprocessHandler:
    """A process that runs `entrypoint` with `args` in a session of its own, started at once.

    `proc` is its `subprocess.Popen`.

    `env` is added to our environment. `stdout` and `stderr` are paths of files, which are emptied;
    None: the streams of this process. The process is not supervised, as those of `start_processes`
    are.

    Raises OSError where the program can't be run or a file can't be opened, ParameterError for
    `numa_options`, which need all processes of the node: `start_processes` takes them.
    """

    def __init__(
        self,
        entrypoint: str,
        args: tuple[object, ...],
        env: Mapping[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: NumaOptions | None,
    ) -> None:
        if numa_options is not None:
            raise ParameterError(
                "numa_options bind all processes of a node together: use start_processes"
            )
        self.local_rank_id = local_rank_id
        self._stdout, self._stderr = _opened(stdout), _opened(stderr)
        try:
            self.proc: Popen[bytes] = Popen(
                (entrypoint, *map(str, args)),
                env={**os.environ, **env},
                stdout=self._stdout,
                stderr=self._stderr,
                start_new_session=True,
            )
        except BaseException:
            self._close_files()
            raise

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """End the program, wait until it has ended, and close the files.

        Sends `death_sig`, or SIGTERM, to the program's process group, unless the program has ended.
        Waits without a limit.
        """
        if self.proc.poll() is None:
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
            self.proc.wait()
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._stdout, self._stderr):
            if file is not None:
                file.close()


def _opened(path: str | None) -> IO[bytes] | None:
    if path is None:
        return None
    return os.fdopen(open_named(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
