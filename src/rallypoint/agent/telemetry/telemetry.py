"""The receivers of an agent's reports: opened before it starts, closed after it has ended.

Nothing here delays the agent: handlers that are slow or fail are behind a `BoundedQueue`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rallypoint.agent.environ import TORCHELASTIC_HEALTH_CHECK_PORT, progress_receiver_asked_for
from rallypoint.agent.telemetry.dispatcher import EventDispatcher
from rallypoint.config import AgentConfig, Endpoint
from rallypoint.core.model import Outcome
from rallypoint.core.node.events import Finish
from rallypoint.core.text import signal_name
from rallypoint.observe.printing import print_error, say

if TYPE_CHECKING:
    from rallypoint.agent.telemetry.keeping import Keeping
    from rallypoint.agent.telemetry.metrics_server import MetricsServer
    from rallypoint.agent.telemetry.trainer_status import TrainerStatus
    from rallypoint.core.watch.goodput_view import GoodputView
    from rallypoint.observe.event import Event
    from rallypoint.observe.history_log import HistoryLogs
    from rallypoint.observe.metrics import MetricData
    from rallypoint.observe.queue import BoundedQueue

CLOSE_S = 2.0
"""How long a handler may take for the last events or metrics, in seconds."""


class Telemetry:
    """The dispatcher of one agent, and the emitters of its configuration."""

    def __init__(
        self,
        config: AgentConfig,
        print_line: Callable[[str], None] = say,
    ) -> None:
        """Make the emitters; `print_line` gets the lines of the event log handler `console`.

        Raises UsageError for an event log handler, a port or a history file that can't be had.
        """
        self.dispatcher = EventDispatcher()
        self._print_line = print_line
        self._config = config
        self._events: BoundedQueue[Event] | None = None
        self._metrics: BoundedQueue[MetricData] | None = None
        self._finished = False
        self._server: MetricsServer | None = None
        self._health: MetricsServer | None = None
        self._progress: TrainerStatus | None = None
        self._goodput: Callable[[], GoodputView | None] = lambda: None
        self.history: HistoryLogs | None = None
        """The files for the history of jobs that this node hosts; None: `--history` was not
        given."""
        self.keeping: Keeping | None = None
        """The object that keeps a record of how the job ended; None: none is kept."""
        self._keep_history(config.observe.history)
        self._keep_job()
        self._serve_metrics()
        self._post_progress()
        self._emit_events(config.observe.event_log_handler)
        self._emit_metrics()

    async def open(self) -> str:
        """Serve the metrics if they are wanted, and return their URL; empty: they are not."""
        if self._server is None:
            return ""
        await self._server.open()
        return self._server.url

    async def open_health(self, host: str) -> str:
        """Answer health checks at this address of the node, if they are wanted.

        Returns the URL, or why there is none, for display; empty: they are not wanted.
        """
        number = self._config.observe.health_port
        if number is None:
            return ""
        from rallypoint.agent.telemetry.metrics_server import open_health_server

        where = Endpoint(host, number)
        try:
            self._health = await open_health_server(where)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            given = f"{TORCHELASTIC_HEALTH_CHECK_PORT}={number}"
            return f"{given}: health checks get no answer: {where}: {why}"
        return f"health checks are answered at {self._health.url}"

    def show_goodput(self, goodput: Callable[[], GoodputView | None]) -> None:
        """Show the use of the job's time in the metrics, while this node hosts its coordinator."""
        self._goodput = goodput

    def hang_up(self) -> None:
        """Stop serving metrics and health checks, before the loop ends."""
        for server in (self._server, self._health):
            if server is not None:
                server.close()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Return a context for a whole run, for programs: it closes this object at the end.

        Before, it reports to the observers an error that ends the run. What was lost is printed to
        stderr.
        """
        try:
            yield
        except BaseException as error:
            self.finished(False, str(error))
            raise
        finally:
            for line in self.close():
                print_error("rallypoint", line)

    def ended(self, finish: Finish) -> None:
        """Report the end of the agent to the observers, as `finish` says how it ended."""
        verdict = finish.verdict
        succeeded = verdict is not None and verdict.outcome is Outcome.SUCCEEDED
        text = finish.text or (signal_name(finish.signal) if finish.signal else "")
        self.finished(succeeded, verdict.text if verdict is not None else text)

    def finished(self, succeeded: bool, reason: str) -> None:
        """Report the end of the agent to the observers; later calls do nothing."""
        if not self._finished:
            self._finished = True
            self.dispatcher.finished(succeeded, reason)

    def close(self, limit_s: float = CLOSE_S) -> list[str]:
        """Give the handlers the last events and metrics. Returns what was lost, a line for each.

        Blocks up to `limit_s` for each handler: not for the loop. Safe to call again.
        """
        self.hang_up()
        lines = []
        if self._progress is not None and (why := self._progress.close(limit_s)):
            lines.append(why)
        if self._events is not None:
            name = self._config.observe.event_log_handler
            if lost := self._events.close(limit_s):
                lines.append(f"events were lost ({name}): {lost}")
        if self.history is not None and (why := self.history.close(limit_s)):
            lines.append(why)
        if self._metrics is not None and (lost := self._metrics.close(limit_s)):
            lines.append(f"metrics were lost: {lost}")
        return lines

    @property
    def lost(self) -> int:
        """The number of events that were lost so far."""
        return self._events.lost if self._events is not None else 0

    def _keep_history(self, path: str | None) -> None:
        if path is not None:
            from rallypoint.observe.history_log import HistoryLogs

            self.history = HistoryLogs(path)

    def _keep_job(self) -> None:
        config = self._config
        if not config.observe.keep_in:
            return
        from rallypoint.agent.telemetry.keeping import Keeping

        run_id = config.rendezvous.run_id
        path = "" if self.history is None else self.history.file_of(run_id)
        self.keeping = Keeping(config, path)
        self.dispatcher.subscribe(self.keeping)

    def _serve_metrics(self) -> None:
        endpoint = self._config.observe.metrics
        if endpoint is None:
            return
        from rallypoint.agent.telemetry.metrics import PrometheusMetrics
        from rallypoint.agent.telemetry.metrics_server import (
            PATH,
            MetricsServer,
            Page,
            bind_metrics,
        )

        metrics = PrometheusMetrics(
            self._config, self.dispatcher, lambda: self.lost, lambda: self._goodput()
        )
        pages = {PATH: Page(metrics.text)}
        self._server = MetricsServer(bind_metrics(endpoint), endpoint.host, pages)
        self.dispatcher.subscribe(metrics)

    def _post_progress(self) -> None:
        receiver = progress_receiver_asked_for()
        if receiver is None:
            return
        from rallypoint.agent.telemetry.trainer_status import TrainerStatus

        def post(status: bytes) -> None:
            # Imported in the thread: what speaks HTTP and TLS takes longer than an agent's start.
            from rallypoint.agent.telemetry.trainer_requests import post

            post(receiver, status)

        self._progress = TrainerStatus(self.dispatcher, post)
        self.dispatcher.subscribe(self._progress)

    def _emit_events(self, name: str) -> None:
        if name == "null":
            return
        from rallypoint.agent.telemetry.events import EventEmitter

        put: Callable[[Event], None] = self._to_console
        if name != "console":
            from rallypoint.observe.event_handlers import open_queue

            self._events = open_queue(name)
            if self._events is None:
                return
            put = self._events.put
        self.dispatcher.subscribe(EventEmitter(self._config, self.dispatcher, put))

    def _to_console(self, event: Event) -> None:
        self._print_line(event.line())

    def _emit_metrics(self) -> None:
        # A program that has configured a handler has imported them.
        metrics = sys.modules.get("rallypoint.observe.metrics")
        if metrics is None:
            return
        handler = metrics.handler_of(metrics.GROUP)
        if isinstance(handler, metrics.NullMetricHandler):
            return
        from rallypoint.agent.telemetry.metrics import MetricEmitter
        from rallypoint.observe.queue import BoundedQueue

        workers, budget = self._config.workers, self._config.rendezvous.max_restarts
        self._metrics = BoundedQueue(handler.emit)
        emitter = MetricEmitter(workers.role, workers.count, budget, self._metrics.put)
        self.dispatcher.subscribe(emitter)
