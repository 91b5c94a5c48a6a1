"""Follow log files and pass on their lines, as `torch.distributed.elastic` does.

For programs that start processes themselves. The agent does not need it: what it shows comes
through its relay.

A file that another process writes tells nobody, and on network file systems not even the kernel
knows; so this looks, at an interval, with one thread for all files.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rallypoint.process.relay.lines import LineAssembler

_READ_BYTES = 256 * 1024


class TailLog:
    """A follower of `log_files` that writes each line with a prefix to `dst`, until `stop`.

    The prefix of a file is its entry in `log_line_prefixes`, else `[<name><its key>]:`. Files may
    be made later. Only lines that `log_line_filter` accepts are passed on; it sees them with their
    line feed and without the prefix. Lines are passed on whole; one of more than 64 KiB comes in
    pieces. Looks every `interval_sec` seconds.
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Callable[[str], bool] | None = None,
    ) -> None:
        prefixes = log_line_prefixes or {}
        self._files = [
            _Followed(path, prefixes.get(key, f"[{name}{key}]:")) for key, path in log_files.items()
        ]
        self._dst, self._filter = dst, log_line_filter
        self._interval_s = interval_sec
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> TailLog:
        """Begin to follow the files, in a thread, and return this object at once. Call once."""
        if self._files:
            self._thread = threading.Thread(target=self._run, name="tail-log", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Pass on all that is in the files by now, and end.

        A last line without its line feed is passed on too. Blocks for as long as `dst` does. Safe
        to call again.

        Raises what `dst` or the filter has raised; nothing was passed on after that.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def stopped(self) -> bool:
        """Return whether `stop` was called."""
        return self._stop.is_set()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._interval_s):
                self._look()
            self._look()
            for file in self._files:
                self._pass_on(file, file.lines.finish())
        except BaseException as error:
            self._error = error
        finally:
            for file in self._files:
                file.close()

    def _look(self) -> None:
        for file in self._files:
            while data := file.read():
                self._pass_on(file, file.lines.feed(data, time.monotonic()))
            self._pass_on(file, file.lines.settle(time.monotonic()))

    def _pass_on(self, file: _Followed, lines: bytes) -> None:
        if not lines:
            return
        found = lines.decode(errors="replace").split("\n")[:-1]
        wanted = self._filter
        self._dst.writelines(
            f"{file.prefix}{line}\n" for line in found if wanted is None or wanted(line + "\n")
        )
        self._dst.flush()


class _Followed:
    """A log file that may not exist yet."""

    def __init__(self, path: str, prefix: str) -> None:
        self.prefix, self.lines = prefix, LineAssembler(b"")
        self._path = path
        self._file: io.FileIO | None = None

    def read(self) -> bytes:
        """Return the bytes that were appended since the last read, at most 256 KiB."""
        if self._file is None:
            try:
                self._file = io.FileIO(self._path)
            except FileNotFoundError:
                return b""
        return self._file.read(_READ_BYTES) or b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Write the lines of one file to `dst`, each behind `header`, until `finished` is set.

    Blocks until all that is in the file by then has been passed on. The other parameters are those
    of `TailLog`. Raises what `dst` or the filter has raised.
    """
    tail = TailLog("", {0: file}, dst, {0: header}, interval_sec, log_line_filter).start()
    finished.wait()
    tail.stop()
