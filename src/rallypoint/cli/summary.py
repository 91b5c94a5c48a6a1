"""What a run leaves for programs: the last events, and `--json-summary`, however it ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent.telemetry.telemetry import Telemetry
from rallypoint.cli.verdict import VerdictView, ending, kept_text
from rallypoint.config import AgentConfig
from rallypoint.core.model import Ending
from rallypoint.core.outcomes import BY_CLASS, SIGNALLED, Outcome
from rallypoint.core.text import shown
from rallypoint.errors import ExitClass, RallypointError, UsageError
from rallypoint.observe.printing import print_error, say
from rallypoint.process.signals import late_signals_interrupt

if TYPE_CHECKING:
    from rallypoint.observe.summary import SummaryFile


_SIGINT = 2


def _in_directory(path: str, node: str) -> str:
    """The file of this node, in a directory that is made if it is missing. Raises UsageError."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--json-summary {path}: can't be made: {error.strerror}") from error
    return os.path.join(path, f"{node.replace('/', '_')}.json")


class JobReport:
    """Opened before anything is started; then `ended` and `close`, or `failed`."""

    def __init__(self, config: AgentConfig, print_line: Callable[[str], None]) -> None:
        """As `Telemetry`; raises UsageError also where the summary can't be written."""
        self._config = config
        path = config.observe.json_summary
        if path is not None and path.endswith("/"):
            path = _in_directory(path, config.rendezvous.node_id or socket.gethostname())
        self._file: SummaryFile | None = None
        if path is not None:
            # Imported when it is asked for: most jobs leave no summary.
            from rallypoint.observe.summary import SummaryFile

            self._file = SummaryFile(path)
        self._ended: Ending | None = None
        self.tells_where = False
        """The last line says where the end of the job is kept."""
        self.telemetry = Telemetry(config, print_line)

    def ended(self, view: VerdictView) -> None:
        """The job has ended for this agent; its console is still open."""
        self._ended = view
        if (keeping := self.telemetry.keeping) is not None:
            keeping.ended(view)
        self.telemetry.finished(view.outcome is Outcome.SUCCEEDED, view.reason)

    def failed(self, error: BaseException) -> None:
        """This agent ends by an error, also after the job's end."""
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
        """Flush events and metrics, and write the summary. May block for seconds; a signal ends
        only that wait."""
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
