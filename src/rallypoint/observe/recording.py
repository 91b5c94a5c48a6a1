"""Recording events by the name of their handler, as a library.

What is recorded goes through an `Outlet`, one per handler and process: recording never waits, and
what a handler failed at or was too slow for is told on stderr when the process ends.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading

from rallypoint.observe.event import Event, NodeState, RdzvEvent
from rallypoint.observe.event_handlers import RENDEZVOUS, EventHandler, make_event_handler
from rallypoint.observe.outlet import Outlet
from rallypoint.observe.printing import complain

CLOSE_S = 2.0
"""How long a handler may take for the last events."""

_outlets: dict[tuple[int, str], Outlet[Event] | None] = {}
_lock = threading.Lock()


def open_outlet(destination: str) -> Outlet[Event] | None:
    """A new outlet to the handler of this name; None when that takes nothing.

    Raises ParameterError as `make_event_handler` does.
    """
    handler: EventHandler | None = make_event_handler(destination)
    return None if handler is None else Outlet(handler.handle, handler.close)


def record(event: Event, destination: str = "null") -> None:
    """Give the event to a handler, by name (`console`, `null`, `jsonl:FILE`, or a package's).

    Does not block. Raises ParameterError for a handler that there is not.
    """
    outlet = _outlet(destination)
    if outlet is not None:
        outlet.put(event)


def record_rdzv_event(event: RdzvEvent) -> None:
    """The same for a step of a rendezvous; nobody is told unless a package offers a handler named
    `dynamic_rendezvous`."""
    outlet = _outlet(RENDEZVOUS)
    if outlet is not None:
        outlet.put(event.as_event())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Make and record a step of a rendezvous; the name is by default `file:function` of the
    caller. With FAILED, within an `except` block, the traceback goes along. Costs nothing when
    nobody is told."""
    if _outlet(RENDEZVOUS) is None:
        return
    error_trace = ""
    if node_state is NodeState.FAILED and sys.exc_info()[0] is not None:
        import traceback

        error_trace = traceback.format_exc()
    caller = sys._getframe(1).f_code
    record_rdzv_event(
        RdzvEvent(
            name=name or f"{os.path.basename(caller.co_filename)}:{caller.co_name}",
            run_id=run_id,
            message=message,
            hostname=hostname or socket.getfqdn(),
            pid=os.getpid() if pid is None else pid,
            node_state=node_state,
            master_endpoint=master_endpoint,
            rank=rank,
            local_id=local_id,
            error_trace=error_trace,
        )
    )


def _outlet(destination: str) -> Outlet[Event] | None:
    # A forked child has this table, but not the threads.
    key = (os.getpid(), destination)
    with _lock:
        if key not in _outlets:
            _outlets[key] = open_outlet(destination)
        return _outlets[key]


@atexit.register
def flush_events() -> None:
    """Let every handler have what was recorded, and close it; what is recorded later opens it
    again. Blocks, at most 2 s for each handler. Called when the process ends."""
    with _lock:
        mine = [key for key in _outlets if key[0] == os.getpid()]
        closing = [(key[1], _outlets.pop(key)) for key in mine]
    for destination, outlet in closing:
        lost = outlet.close(CLOSE_S) if outlet is not None else ""
        if lost:
            complain("rallypoint", f"events were lost ({destination}): {lost}")
