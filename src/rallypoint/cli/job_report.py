"""What a run leaves for programs: the events' last ones, and the summary, on every way out."""

from __future__ import annotations

from rallypoint.agent.telemetry import Telemetry
from rallypoint.cli.exit_codes import SIGNALLED, of_class
from rallypoint.cli.verdict_text import VerdictView
from rallypoint.config import AgentConfig
from rallypoint.core.model import Outcome
from rallypoint.core.wording import shown
from rallypoint.errors import ExitClass, RallypointError
from rallypoint.observe.printing import complain
from rallypoint.observe.summary import SummaryFile
from rallypoint.process.signals import late_signals_interrupt

_SIGINT = 2


class JobReport:
    """Opened before anything is started; then `ended` and `close`, or `failed`."""

    def __init__(self, config: AgentConfig) -> None:
        """Raises UsageError when nobody could be told."""
        self._config = config
        path = config.observe.json_summary
        self._file = SummaryFile(path) if path is not None else None
        self._ended: VerdictView | BaseException | None = None
        self.telemetry = Telemetry(config)

    def ended(self, view: VerdictView) -> None:
        """The job has ended for this agent, while its console still stands."""
        self._ended = view
        self.telemetry.finished(view.outcome is Outcome.SUCCEEDED, view.reason)

    def failed(self, error: BaseException) -> None:
        """This agent ends by an error, also after the job's end."""
        self._ended = error
        self.telemetry.console = None  # It has been taken down.
        self.telemetry.finished(False, str(error))
        if isinstance(error, RallypointError):
            self.close(of_class(self._config, error.exit_class))
        else:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.close(SIGNALLED + _SIGINT if interrupted else ExitClass.FAILED.value)

    def close(self, exit_code: int) -> None:
        """Let everybody have the last, and write the summary. May block for seconds; a signal ends
        that, and nothing else."""
        try:
            with late_signals_interrupt():
                lost = self.telemetry.close()
        except KeyboardInterrupt:
            lost = self.telemetry.close(0.0)
        for line in lost:
            complain("rallypoint", line)
        if self._file is None or self._ended is None:
            return
        from rallypoint.cli.summary_view import job_summary

        summary = job_summary(
            self._config, self.telemetry.chronicle, self._ended, exit_code, self.telemetry.lost
        )
        try:
            self._file.write(summary)
        except OSError as error:
            path = shown(self._config.observe.json_summary or "")
            complain("rallypoint", f"--json-summary {path}: can't be written: {error.strerror}")
