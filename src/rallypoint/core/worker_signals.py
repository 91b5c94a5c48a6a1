"""Signals that a scheduler has sent to the workers, so that the agent does not send them again.

Schedulers signal every process of a node: the agent, and its workers at about the same time. If
the agent then sends the same signal, a handler that saves a checkpoint is interrupted by itself.
A worker can't be asked which signals have reached it. So the agent has a witness: a process beside
it that notes its own signals, the guard (`process/guard.py`). A scheduler that has signalled the
witness has signalled the workers.

The signal of the witness and that of the agent come in any order, some milliseconds apart.
Meanwhile the agent sends its workers no signal:

* The signal has reached the agent only: for `WITNESS_S`. Then a person or Kubernetes has signalled
  the agent alone.
* The signal has reached the witness only: for `OWN_SIGNAL_S`. Then it does not count. Meanwhile an
  end of a worker is neither a success nor a failure: a handler may have saved a checkpoint and
  ended the worker with 0 long before the work is done.
* Another node leaves: for `WITNESS_S`. A scheduler may be about to signal this node too.

Workers count together, because a scheduler ends all processes of a control group.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

WITNESS_S = 0.2
"""How much later than the agent the witness (its guard process) may get a signal, in seconds."""
OWN_SIGNAL_S = 2.0
"""How much later than the witness (its guard process) the agent may get a signal, in seconds."""


class Received(Enum):
    """The processes of a node's workers that a signal has reached already."""

    NOBODY = "nobody"
    WORKERS = "workers"
    """The workers, but not their children, as with `--drain-signal`."""
    EVERYBODY = "everybody"
    """All processes of the node: a scheduler has sent the signal."""


class WorkerSignals(Struct):
    """The signals that the workers of a round got, and signals that the agent holds back."""

    by_agent: set[int] = field(default_factory=set)
    """The signals that have reached the agent."""
    by_witness: set[int] = field(default_factory=set)
    """The signals that have lately reached the witness (the agent's guard process), but not the
    agent."""
    by_both: set[int] = field(default_factory=set)
    notified: set[int] = field(default_factory=set)
    """The signals that the agent has sent as a request for a checkpoint."""
    is_waiting: bool = False
    """Whether the agent waits, because another signal may reach the witness (its guard process) in
    a moment."""
    held_stop: int = 0
    """The signal that is to end the workers, held back while a scheduler may be sending it, too; 0:
    none."""
    held_notice: int = 0
    """The signal that asks the workers for a checkpoint, held back while a scheduler may be sending
    it, too; 0: none."""


def workers_started(signals: WorkerSignals) -> None:
    """Forget all earlier signals: they have not reached the new workers."""
    for earlier in (signals.by_agent, signals.by_witness, signals.by_both, signals.notified):
        earlier.clear()


def agent_got(signals: WorkerSignals, number: int) -> bool:
    """Note that a signal has reached the agent; return whether the witness got it before."""
    signals.by_agent.add(number)
    return _meet(signals, number)


def witness_got(signals: WorkerSignals, number: int) -> bool:
    """Note that a signal has reached the witness; return whether the agent got it before."""
    signals.by_witness.add(number)
    return _meet(signals, number)


def _meet(signals: WorkerSignals, number: int) -> bool:
    if number not in signals.by_agent & signals.by_witness:
        return False
    signals.by_witness.discard(number)
    signals.by_both.add(number)
    return True


def awaits_own_signal(signals: WorkerSignals, handled: tuple[int, ...]) -> bool:
    """Return whether the witness has got a signal that the agent may still get.

    `handled` has the signals that the agent handles.
    """
    return not signals.by_witness.isdisjoint(handled)


def received(signals: WorkerSignals, number: int, handled: tuple[int, ...]) -> Received | None:
    """Return which processes a signal has reached; None: that is known in a moment.

    `handled` has the signals that the agent handles; any other one counts as soon as it has reached
    the witness.
    """
    if number in signals.by_both or (number in signals.by_witness and number not in handled):
        return Received.EVERYBODY
    if signals.is_waiting or number in signals.by_witness:
        return None
    return Received.WORKERS if number in signals.notified else Received.NOBODY
