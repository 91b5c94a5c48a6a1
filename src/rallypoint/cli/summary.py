"""The last reports of a run for programs: the last events, and `--json-summary`.

They are made after a success, a failure of the job or an error of the agent.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Mapping

import msgspec

from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.cli.verdict import VerdictView, ending, kept_text
from rallypoint.config import AgentConfig
from rallypoint.core.model import Ending
from rallypoint.core.outcomes import BY_CLASS, SIGNALLED, Outcome
from rallypoint.core.text import shown
from rallypoint.errors import ExitClass, RallypointError, UsageError
from rallypoint.files import put_whole, safe_open
from rallypoint.observe.printing import print_error, say
from rallypoint.process.signals import late_signals_interrupt

_SIGINT = 2


def _in_directory(path: str, node: str) -> str:
    """Return the path `NODE.json` in a directory, which is made if missing. Raises UsageError.

    It is the file of this node for `--json-summary DIR/`.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--json-summary {path}: can't be made: {error.strerror}") from error
    return os.path.join(path, f"{node.replace('/', '_')}.json")


class JobReport:
    """The last reports of one run: events, metrics, the kept end of the job, and `--json-summary`.

    It is made before anything is started. At the end `ended` and then `close` are called. If an
    error ends the agent, `failed` is called instead of `close`, also after `ended`.
    """

    def __init__(self, config: AgentConfig, print_line: Callable[[str], None]) -> None:
        """Open the telemetry, and check the file of `--json-summary`.

        `print_line` prints a line for the user. Raises UsageError, also where the summary can't be
        written.
        """
        self._config = config
        path = config.observe.json_summary
        if path is not None and path.endswith("/"):
            path = _in_directory(path, config.rendezvous.node_id or socket.gethostname())
        self._file: SummaryFile | None = None
        if path is not None:
            self._file = SummaryFile(path)
        self._ended: Ending | None = None
        self.tells_where = False
        """Whether the last line is to say where the end of the job is kept."""
        self.telemetry = Telemetry(config, print_line)

    def ended(self, view: VerdictView) -> None:
        """Report the end of the job for this agent, while its console is still open."""
        self._ended = view
        if (keeping := self.telemetry.keeping) is not None:
            keeping.ended(view)
        self.telemetry.finished(view.outcome is Outcome.SUCCEEDED, view.reason)

    def failed(self, error: BaseException) -> None:
        """Report the error that ends this agent, even after the job's end, and close."""
        self._ended, self.tells_where = ending(error), False
        if self.telemetry.keeping is not None:
            self.telemetry.keeping.ended(self._ended)
        self.telemetry.finished(False, str(error))
        if isinstance(error, RallypointError):
            self.close(self._config.stop.exit_code(BY_CLASS[error.exit_class].exit_class))
        else:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.close(SIGNALLED + _SIGINT if interrupted else ExitClass.FAILED.value)

    def _say_where(self, path: str, why: str) -> None:
        from rallypoint.cli.machine import brief

        if not self.tells_where or self._ended is None:
            return
        keep_in = brief(self._config.observe.keep_in)
        if text := kept_text(self._ended, path and brief(path), keep_in, why):
            say(f"    {text}")

    def close(self, exit_code: int) -> None:
        """Flush events and metrics, write the kept end of the job, and the summary.

        May block for seconds; a signal ends only that wait.
        """
        try:
            with late_signals_interrupt():
                lost = self.telemetry.close()
        except KeyboardInterrupt:
            lost = self.telemetry.close(0.0)
        for line in lost:
            print_error("rallypoint", line)
        keeping = self.telemetry.keeping
        if keeping is not None:
            kept = keeping.close(exit_code)
            self._say_where(kept, keeping.why)
        if self._file is None or self._ended is None:
            return
        from rallypoint.cli.verdict_json import job_summary

        known = self._config, self.telemetry.dispatcher, self._ended
        summary = job_summary(*known, exit_code, self.telemetry.lost)
        try:
            self._file.write(summary)
        except OSError as error:
            path = shown(self._config.observe.json_summary or "")
            print_error("rallypoint", f"--json-summary {path}: can't be written: {error.strerror}")


def _is_own_output(path: str) -> bool:
    for fd in (1, 2):
        try:
            if os.path.samestat(os.stat(path), os.fstat(fd)):
                return True
        except OSError:
            pass  # It is not there yet, or this stream is closed.
    return False


class SummaryFile:
    """A file that gets a summary atomically, or stays unchanged."""

    def __init__(self, path: str) -> None:
        """Check that the file can be written, and leave no trace. Raises UsageError."""
        self._target = os.path.realpath(path)
        try:
            mode = os.stat(self._target).st_mode if os.path.lexists(self._target) else stat.S_IFREG
            if not stat.S_ISREG(mode):
                raise UsageError(f"--json-summary {path}: exists and is not a regular file")
            if _is_own_output(self._target):
                raise UsageError(
                    f"--json-summary {path}: this command's own output goes there, and would be "
                    "lost: name another file"
                )
            draft = self._draft()
            os.close(safe_open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            os.unlink(draft)
        except OSError as error:
            text = f"--json-summary {path}: can't be written: {error.strerror}"
            raise UsageError(text) from error

    def write(self, summary: Mapping[str, object]) -> None:
        """Write the summary. Raises OSError if it can't be written; then the file is unchanged."""
        import json  # only now: a start has no use for it

        # ASCII: no text is read as anything else, also with bytes in it that are no UTF-8.
        text = json.dumps(msgspec.to_builtins(summary), indent=2).replace("\x7f", "\\u007f")
        # It becomes what the person named, so its mode is as their umask says.
        put_whole(self._target, self._draft(), f"{text}\n".encode(), 0o666, sync=True)

    def _draft(self) -> str:
        folder, name = os.path.split(self._target)
        return os.path.join(folder, f".{name[:200]}.{os.urandom(8).hex()}")
