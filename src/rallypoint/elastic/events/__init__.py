"""The events of a job, in the vocabulary of torch's `elastic.events`."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading

from rallypoint.elastic.events.api import (
    Event as Event,
    EventMetadataValue as EventMetadataValue,
    EventSource as EventSource,
    NodeState as NodeState,
    RdzvEvent as RdzvEvent,
)
from rallypoint.elastic.events.handlers import get_logging_handler as get_logging_handler
from rallypoint.observe.event_handlers import (
    RENDEZVOUS,
    EventHandler as EventHandler,
    known_event_handlers as known_event_handlers,
    make_event_handler as make_event_handler,
    open_queue,
)
from rallypoint.observe.printing import print_error
from rallypoint.observe.queue import BoundedQueue

_CLOSE_S = 2.0
"""How long a handler may take for the last events, in seconds."""
_queues: dict[tuple[int, str], BoundedQueue[Event] | None] = {}
_lock = threading.Lock()


def record(event: Event, destination: str = "null") -> None:
    """Queue the event for a handler, by name (`console`, `null`, `jsonl:FILE`, or a package's).

    A thread passes it on, so this does not block; an event that does not fit into the queue is
    dropped. Raises ParameterError as `make_event_handler` does.
    """
    queue = _queue(destination)
    if queue is not None:
        queue.put(event)


def record_rdzv_event(event: RdzvEvent) -> None:
    """Record a step of a rendezvous, as `record` does an event.

    It is dropped unless a package offers a handler named `dynamic_rendezvous`.
    """
    queue = _queue(RENDEZVOUS)
    if queue is not None:
        queue.put(event.as_event())


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
    """Make and record a step of a rendezvous; the name is by default `file:function` of the caller.

    With FAILED, within an `except` block, the traceback is included. Costs nothing without a
    handler.
    """
    if _queue(RENDEZVOUS) is None:
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


def _queue(destination: str) -> BoundedQueue[Event] | None:
    # A forked child has this table, but not the threads.
    key = (os.getpid(), destination)
    with _lock:
        if key not in _queues:
            _queues[key] = open_queue(destination)
        return _queues[key]


@atexit.register
def flush_events() -> None:
    """Pass all recorded events to their handlers, and close the handlers.

    A later event opens its handler again. Called when the process ends. Blocks for at most 2 s for
    each handler; a line on stderr says if events were lost.
    """
    with _lock:
        mine = [key for key in _queues if key[0] == os.getpid()]
        closing = [(key[1], _queues.pop(key)) for key in mine]
    for destination, queue in closing:
        lost = queue.close(_CLOSE_S) if queue is not None else ""
        if lost:
            print_error("rallypoint", f"events were lost ({destination}): {lost}")
