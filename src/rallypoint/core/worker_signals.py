"""Which signals the workers of a round have already, so that none is sent to them twice.

Schedulers signal every process of a node: the agent, and its workers at about the same time. A
handler that saves a checkpoint would be interrupted by itself if the agent sent the same signal
again. The workers can't be asked whether they have a signal. So a process beside the agent, the
witness, tells which signals it got: who has signalled the witness has signalled the workers too.

The witness' word and the agent's own signal come in any order, some milliseconds apart. Meanwhile a
signal for the workers is held:

* The agent got it and the witness did not: for `WITNESS_S`. Then the agent alone was signalled.
* The witness got it and the agent did not: for `OWN_SIGNAL_S`. Then it was meant for the witness.
* Another node leaves by a signal: for `WITNESS_S`. A scheduler may be about to signal this node.

Workers count together. A scheduler ends a step by its control group, which has all of them.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

WITNESS_S = 0.2
"""How much later than its agent a busy machine's witness may get a signal, and tell it."""
OWN_SIGNAL_S = 2.0
"""How much later than its witness an agent may get a signal."""


class Received(Enum):
    """Who has a signal already."""

    NOBODY = "nobody"
    WORKERS = "workers"
    """The workers, but not what they have started: `--drain-signal`."""
    EVERYBODY = "everybody"
    """Each process of the node: a scheduler has sent it."""


class WorkerSignals(Struct):
    """What is known of the workers that run, and which signals wait for more to be known."""

    by_agent: set[int] = field(default_factory=set)
    """The agent got these."""
    by_witness: set[int] = field(default_factory=set)
    """The witness got these a moment ago, and the agent did not."""
    by_both: set[int] = field(default_factory=set)
    notified: set[int] = field(default_factory=set)
    """The workers got these from the agent, as a request for a checkpoint."""
    is_waiting: bool = False
    """The witness may tell more in a moment."""
    held_stop: int = 0
    """The signal that ends the round's workers; 0: none is held."""
    held_notice: int = 0
    """The signal that asks them for a checkpoint."""


def workers_started(signals: WorkerSignals) -> None:
    """Nothing that came before has reached all workers."""
    for earlier in (signals.by_agent, signals.by_witness, signals.by_both, signals.notified):
        earlier.clear()


def agent_got(signals: WorkerSignals, number: int) -> bool:
    """Note a signal of the agent. True: the witness got it before."""
    signals.by_agent.add(number)
    return _meet(signals, number)


def witness_got(signals: WorkerSignals, number: int) -> bool:
    """Note a signal of the witness. True: the agent got it before."""
    signals.by_witness.add(number)
    return _meet(signals, number)


def _meet(signals: WorkerSignals, number: int) -> bool:
    if number not in signals.by_agent & signals.by_witness:
        return False
    signals.by_witness.discard(number)
    signals.by_both.add(number)
    return True


def received(signals: WorkerSignals, number: int, handled: tuple[int, ...]) -> Received | None:
    """Who has this signal; None: it will be known in a moment. `handled`: by the agent; of others
    the witness' word is enough."""
    if number in signals.by_both or (number in signals.by_witness and number not in handled):
        return Received.EVERYBODY
    if signals.is_waiting or number in signals.by_witness:
        return None
    return Received.WORKERS if number in signals.notified else Received.NOBODY
