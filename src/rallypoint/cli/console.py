"""The console of `rallypoint run`.

One plain line per event, a live status line in a terminal, and the last lines.

A person sees each fact once, and a wait only when it lasts. A program that reads JSON gets every
event. The table of event kinds says which is which.
"""

from __future__ import annotations

import os

from rallypoint.agent.output_files import shown_workers
from rallypoint.cli.render import render_event, render_event_json, render_status
from rallypoint.config import AgentConfig, OutputMode
from rallypoint.core import event_kinds as kinds
from rallypoint.core.event_kinds import Detail, EventKind, Level, ReportedBy
from rallypoint.observe.records import AgentEvent, Observer, StatusView, event_now
from rallypoint.process.logs.plan import resolve_mode
from rallypoint.process.relay.client import Relay

_STDOUT, _STDERR = 1, 2
WAIT_SHOWN_S = 2.0
"""The length of a wait, in seconds, from which its reason is printed."""


class Printer(Observer):
    """The observer that writes events and the status line through the relay, and so never blocks.

    The relay is the helper process that writes the workers' output.
    """

    def __init__(self, config: AgentConfig, relay: Relay) -> None:
        output, alone = config.output, config.rendezvous.max_nodes == 1
        self._relay = relay
        self._json = output.log_format == "json"
        self._quiet = output.quiet
        self._level = Level[output.log_level]
        self._show_node = not alone
        # Among lines that workers write past the relay, a status line would tear them.
        tidy = not self._json and not self._quiet and _mode(config) is OutputMode.PREFIX
        self._shows_status = tidy and output.draws and os.isatty(_STDERR)
        self._shown_wait = ""

    def event(self, event: AgentEvent) -> None:
        if self._is_hidden(event.kind):
            return
        if self._json:
            self.line(render_event_json(event))
        else:
            self.line(render_event(event, show_node=self._show_node))

    def status(self, view: StatusView) -> None:
        if self._shows_status:
            self._relay.status(render_status(view, _width()))
        elif not self._json:
            self._show_wait(view)

    def line(self, *texts: str) -> None:
        """Write texts to the console, each as a line of the agent, not of a worker."""
        self._relay.say(*texts)

    def clear_status(self) -> None:
        """Remove the status line for good."""
        self._shows_status = False
        self._relay.status("")

    def _show_wait(self, view: StatusView) -> None:
        """Print why this node waits, when it has waited for WAIT_SHOWN_S.

        Print it again only if the reason has changed, or for a new wait.
        """
        if not view.waiting_for:
            self._shown_wait = ""
        elif view.for_s >= WAIT_SHOWN_S and view.waiting_for != self._shown_wait:
            self._shown_wait = view.waiting_for
            self.event(event_now(kinds.WAIT(what=view.waiting_for)))

    def _is_hidden(self, kind: EventKind) -> bool:
        if kind.reported_by is ReportedBy.HOST_TO_HANDLERS:
            return True
        return self._level_of(kind) < self._level or (self._quiet and not kind.quiet)

    def _level_of(self, kind: EventKind) -> int:
        is_alone = not self._show_node
        is_detail = kind.detail is Detail.ALWAYS or (kind.detail is Detail.ALONE and is_alone)
        return Level.DEBUG if is_detail and not self._json else kind.level


def _mode(config: AgentConfig) -> OutputMode:
    return resolve_mode(
        config.output.mode,
        stdout_is_terminal=os.isatty(_STDOUT),
        stderr_is_terminal=os.isatty(_STDERR),
        workers=shown_workers(config),
    )


def _width() -> int:
    try:
        # A terminal whose size was never set (`docker run -t`) says 0.
        return os.get_terminal_size(_STDERR).columns or 80
    except OSError:
        return 80
