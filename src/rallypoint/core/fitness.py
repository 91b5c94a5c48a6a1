"""The fitness of machines: which of them a job holds back, for how long, and why. Pure.

A bad machine must not end a job that runs well without it. It is *held back*: its nodes stand by
and take part in no round, as long as the minimum is met without them. Four things hold one back:

* *Losses* (behaviour R3). The third loss of a machine within ten minutes, and each loss after that,
  is followed by a quarantine. The first one lasts 8 leases; each further one is twice as long, at
  most an hour.
* *Failures* (behaviour A11). A machine is on *probation* from when it enters the world until a
  round with it has lasted a minute and, where workers report steps, has done a step. If the first
  cause of a round's end is on a machine on probation, and an earlier round has passed without it,
  nothing is charged, and the machine is held back at once. Any other failure is counted for its
  machine: the second one within an hour (`--hold-back-after`) holds the machine back instead of
  being charged, the ones before it are charged. All of that is void when the program is at fault:
  when workers on two machines fail alike in one round; when the machine that then has the same
  place fails alike (the first one is released, and both failures are charged); or when workers on
  three machines have failed within an hour.
* *A bad route* (behaviour F9): a node did not reach the round store of rank 0. It is held back
  while the node of that rank 0 is there (`job_enrolment.py`).
* *A person* (`rallypoint nodes exclude`), until a person allows the machine again.

A quarantine is lengthened in steps. Its end permits waiting for the next round; a machine with
steps left never ends a round that runs in order to join. Each healthy hour takes one step back,
but only an hour in the world makes the next quarantine shorter, too. A job whose rounds lose nodes
more often in an hour than it allows ends. The losses of one machine count once an hour for that,
while the minimum remains without it.

A quarantine has an end on the host's clock, so that the record of the job has the time that is
left (`left_s`). The host says what time it is in `Fitness.now`; a host without a clock leaves that
at 0, and each quarantine lasts its whole length from when the timer of it begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from rallypoint.core.events import Effect, ExpelNode, RoundNotStarted
from rallypoint.core.fitness_state import (
    BadMachine,
    BadRoute,
    Failure,
    Fitness,
    Hold,
    Loss,
    Why,
    left_s,
)
from rallypoint.core.model import NodeRef
from rallypoint.core.ranks import fitting
from rallypoint.core.round_state import MemberState, RoundMember, RoundPhase, RoundState, remove
from rallypoint.core.text import brief_seconds

FLAPPING = 3
"""The number of losses of a machine within ten minutes that puts it into quarantine."""
FIRST_LEASES = 8
"""The length of a machine's first quarantine, as a multiple of the lease."""
QUARANTINE_MAX_S = 3600.0
PROBATION_S = 60.0
PROGRAM_MACHINES = 3
"""The number of machines whose failures within an hour show that the program is at fault."""
REMEMBERED_MAX = 1000
"""The most losses, failures, machines, and bad routes, each, that are remembered: they are in the
job's record. Machines that a person has excluded are always remembered."""
UNPROVEN = "held back until it has shown that it can start workers and reach rank 0"
EXCLUDED = "a person excluded it (rallypoint nodes exclude)"


def machine_of(member: RoundMember) -> str:
    """Return the name of the machine that a member runs on, or the node id if it has none."""
    return member.candidate.machine or member.ref.node_id


# ---- who may take part


def may_take_part(state: RoundState, member: RoundMember) -> bool:
    """Return whether a member may take part in the next round.

    One that may not is taken all the same when too few others have come (`round.py`), unless
    `is_barred`.
    """
    if not member.is_proven:
        return False
    known = state.fitness.machines.get(machine_of(member))
    if known is not None and (known.hold is not None or known.is_excluded):
        return False
    return not _is_cut_off(state, member)


def is_barred(state: RoundState, member: RoundMember) -> bool:
    """Return whether a member may not take part even if too few other nodes have come.

    Its machine is excluded, or it is held back for not reaching the store of a node still here.
    """
    known = state.fitness.machines.get(machine_of(member))
    return (known is not None and known.is_excluded) or _is_cut_off(state, member)


def is_trusted(state: RoundState, member: RoundMember) -> bool:
    """Return whether this member is trusted so far that a round may be ended to admit it."""
    known = state.fitness.machines.get(machine_of(member))
    return (known is None or not known.step) and may_take_part(state, member)


def _is_cut_off(state: RoundState, member: RoundMember) -> bool:
    """Return whether a member is held back for not reaching the store of a node still here."""
    bad = state.bad_routes.get(member.ref.node_id)
    if bad is None or bad.hold is None:
        return False
    host = state.members.get(bad.host.node_id)
    return host is not None and host.ref == bad.host and host.state is not MemberState.LEAVING


def cut_off_nodes(state: RoundState) -> tuple[str, ...]:
    """Return the ids of all members that are held back since they did not reach rank 0's store.

    They are sorted. O(nodes with such a quarantine).
    """
    here = (state.members.get(node_id) for node_id in state.bad_routes)
    return tuple(sorted(m.ref.node_id for m in here if m is not None and _is_cut_off(state, m)))


def minimum_remains(state: RoundState, without: str) -> bool:
    """Return whether enough nodes for a round remain without this machine. O(N).

    Only members that may take part are counted.
    """
    workers: dict[int, int] = {}
    for member in state.members.values():
        is_here = member.state is not MemberState.LEAVING and machine_of(member) != without
        if is_here and may_take_part(state, member):
            each = member.candidate.workers
            workers[each] = workers.get(each, 0) + 1
    settings, number = state.settings, sum(workers.values())
    if settings.world_multiple_of > 1:
        number = fitting(workers, settings.max_nodes, settings.world_multiple_of)
    return number >= settings.min_nodes


# ---- who was rank 0


def host_is_gone(state: RoundState, host: NodeRef) -> list[RoundMember]:
    """Return the members that could not reach the store of this rank 0, which has gone.

    They are not held back for it any more. None are returned while a round is active.
    """
    if state.phase is RoundPhase.ACTIVE:
        return []
    here = (
        state.members.get(node_id) for node_id, bad in state.bad_routes.items() if bad.host == host
    )
    return [member for member in here if member is not None]


def give_up_on(state: RoundState, event: RoundNotStarted) -> list[Effect]:
    """Expel and hold back the nodes that failed to enrol, and note which node may not be rank 0.

    The round has been ended before. Returns the effects.
    """
    if event.passed_over:
        state.passed_over.append(event.passed_over)
    host = NodeRef(state.world[0].node_id, state.world[0].incarnation)
    effects: list[Effect] = []
    for ref, why in event.expelled:
        member = state.members.get(ref.node_id)
        if member is None or member.ref != ref:
            continue
        bad = cut_off(state, ref.node_id, host)
        assert bad.hold is not None
        remove(state, member)
        until = f"held back for {_length(bad.hold)} s"
        effects.append(ExpelNode(ref, f"{why}; {until}", final=False))
    return effects


def forget_bad_routes(state: RoundState) -> None:
    """Forget that nodes of the world did not reach a round store earlier: they all have now.

    The nodes that were passed over may be rank 0 again.
    """
    state.passed_over.clear()
    for entry in state.world:
        state.bad_routes.pop(entry.node_id, None)
    state.started_world = frozenset(entry.incarnation for entry in state.world)


# ---- quarantine


def hold_back(state: RoundState, machine: str, node_id: str, reason: Why, why: str) -> BadMachine:
    """Begin a quarantine of this machine for this reason, and return what is known of the machine.

    Each one is a step longer than the last (`length_s`); healthy hours in rounds take steps back.
    """
    fitness = state.fitness
    known = fitness.machines.pop(machine, None) or BadMachine(node_id, reason, why)
    known.node_id, known.reason, known.why = node_id, reason, why
    known.step = known.peak = known.peak + 1
    fitness.changes += 1
    known.hold = _hold(state, length_s(state, known.step))
    fitness.machines[machine] = known
    _forget_oldest(fitness)
    return known


def length_s(state: RoundState, step: int) -> float:
    """Return the length in seconds of a quarantine of this step: 8 leases for step 1.

    Each further step doubles it, up to an hour.
    """
    return min(state.settings.lease_s * FIRST_LEASES * 2.0 ** min(step - 1, 30), QUARANTINE_MAX_S)


def _hold(state: RoundState, seconds: float) -> Hold:
    fitness = state.fitness
    fitness.holds += 1
    return Hold(fitness.holds, fitness.now, fitness.now + seconds)


def _forget_oldest(fitness: Fitness) -> None:
    while len(fitness.machines) > REMEMBERED_MAX:
        oldest = next((m for m, x in fitness.machines.items() if not x.is_excluded), None)
        if oldest is None:
            return
        del fitness.machines[oldest]


def cut_off(state: RoundState, node_id: str, host: NodeRef) -> BadRoute:
    """Hold back a node that did not reach the round store of rank 0, `host`.

    Each such quarantine is twice as long as the one before, at most an hour.
    """
    state.fitness.changes += 1
    before = state.bad_routes.pop(node_id, None)
    failures = 1 if before is None else before.failures + 1
    bad = BadRoute(host, failures, _hold(state, length_s(state, failures)))
    state.bad_routes[node_id] = bad
    if len(state.bad_routes) > REMEMBERED_MAX:
        del state.bad_routes[next(iter(state.bad_routes))]
    return bad


def quarantine_over(state: RoundState, number: int) -> str | None:
    """End the quarantine with this number.

    Returns the name of the machine, or the id of the node that had not reached rank 0's store.
    None: there is no such quarantine any more.
    """
    for machine, known in state.fitness.machines.items():
        if known.hold is not None and known.hold.number == number:
            known.hold = None
            return machine
    for node_id, bad in state.bad_routes.items():
        if bad.hold is not None and bad.hold.number == number:
            bad.hold = None
            return node_id
    return None


def healthy_hour(state: RoundState, machine: str) -> None:
    """Note that a node of this machine was in the job for an hour without a loss.

    This takes one step back from the machine's quarantines. If the node takes part in the round,
    the next quarantine is shorter, too.
    """
    known = state.fitness.machines.get(machine)
    if known is None:
        return
    known.hours += 1
    known.step = max(known.step - 1, 0)
    member = state.members.get(known.node_id)
    if member is not None and member.state is MemberState.RUNNING:
        known.peak -= 1
        _forget_if_good(state, machine)


def exclude(state: RoundState, machine: str, node_id: str) -> None:
    """Exclude this machine from all rounds until a person allows it, at a person's request."""
    fitness = state.fitness
    known = fitness.machines.get(machine) or BadMachine(node_id, Why.PERSON, EXCLUDED)
    known.node_id = node_id
    fitness.changes += 1
    if not known.is_excluded:
        known.is_excluded, known.excluded_since = True, fitness.now
    fitness.machines[machine] = known
    _forget_oldest(fitness)


def allow(state: RoundState, machine: str, node_id: str = "") -> bool:
    """Trust this machine and this node again, at a person's request.

    The machine's failures and recent losses are forgotten, and that the node did not reach a round
    store. Returns whether either was not trusted.
    """
    fitness = state.fitness
    fitness.changes += 1
    fitness.failures = [each for each in fitness.failures if each.machine != machine]
    fitness.recent_losses = [each for each in fitness.recent_losses if each.machine != machine]
    known = fitness.machines.pop(machine, None)
    return state.bad_routes.pop(node_id, None) is not None or known is not None


# ---- losses


def count_loss(state: RoundState, machine: str, node_id: str) -> bool:
    """Count the loss of a node of the last round, or of a helper process there, for its machine.

    The third loss within ten minutes begins a quarantine, as does any while the machine's `peak` is
    above 0. Returns whether the job has now lost nodes in more rounds than it allows.
    """
    fitness = state.fitness
    fitness.loss_count += 1
    fitness.recent_losses.append(Loss(fitness.loss_count, machine))
    del fitness.recent_losses[:-REMEMBERED_MAX]
    known = fitness.machines.get(machine)
    lost = sum(loss.machine == machine for loss in fitness.recent_losses)
    if lost >= FLAPPING or (known is not None and known.peak):
        times = f"{lost} times within ten minutes" if lost > 1 else "again"
        hold_back(state, machine, node_id, Why.LOSSES, f"it was lost {times}")
    return count_round(state, machine)


def count_round(state: RoundState, machine: str = "") -> bool:
    """Count the last round as one that lost nodes, even if it ended for another reason.

    Each round counts once, and each machine once an hour while enough others remain. Returns
    whether the job has now lost nodes in more rounds than it allows.
    """
    fitness, ended = state.fitness, state.round - 1
    if ended in state.lossy_rounds:
        return False
    if machine in fitness.lossy_machines.values() and minimum_remains(state, machine):
        return False
    state.lossy_rounds.append(ended)
    if machine:
        fitness.lossy_machines[ended] = machine
    return len(state.lossy_rounds) > state.settings.max_node_losses_per_hour


def forget_loss(state: RoundState, loss_id: str) -> None:
    """Forget a loss: ten minutes have passed since."""
    fitness = state.fitness
    fitness.recent_losses = [loss for loss in fitness.recent_losses if str(loss.id) != loss_id]


def forget_lossy_round(state: RoundState, round_: int) -> None:
    """Forget a round with losses: an hour has passed since."""
    state.lossy_rounds = [lossy for lossy in state.lossy_rounds if lossy != round_]
    state.fitness.lossy_machines.pop(round_, None)


# ---- probation


def formed(state: RoundState) -> None:
    """Put machines of the world that were not in the last passed round, if any, on probation."""
    fitness = state.fitness
    fitness.is_over = fitness.has_stepped = False
    here = _machines_of_world(state)
    fitness.trial &= here
    if fitness.passed_round >= 0:
        fitness.trial |= here - fitness.passed_world


def stepped(state: RoundState, round_: int) -> None:
    """Note that workers of this round have reported a step, which may end its probation.

    O(1), except the first time.
    """
    fitness = state.fitness
    fitness.reports_steps = True
    if not fitness.has_stepped and state.round == round_ and state.phase is RoundPhase.ACTIVE:
        fitness.has_stepped = True
        _pass(state)


def minute_over(state: RoundState) -> None:
    """Note that the workers of the active round have run for a minute.

    This may end the round's probation.
    """
    state.fitness.is_over = True
    _pass(state)


def _pass(state: RoundState) -> None:
    """End the probation of the active round and its machines, if they have passed it.

    The minute must be over, and a step done if workers of the job report steps.
    """
    fitness = state.fitness
    if fitness.is_over and (fitness.has_stepped or not fitness.reports_steps):
        fitness.passed_round = state.round
        fitness.passed_world = _machines_of_world(state)
        fitness.trial.clear()


def taken_over(state: RoundState) -> None:
    """Note that a new coordinator has learnt the present world from its nodes.

    If a round has passed, the machines not on probation count as those of the last such round.
    """
    fitness = state.fitness
    if fitness.passed_round >= 0:
        fitness.passed_world = _machines_of_world(state) - fitness.trial


def _machines_of_world(state: RoundState) -> frozenset[str]:
    return frozenset(entry.machine or entry.node_id for entry in state.world)


# ---- failures


class Judgement(Struct, frozen=True):
    """The decision about the failure that ended a round."""

    charges: int
    """The number of charges to the restart budget: 1 for this failure; 0: a machine is held back
    instead; 2: also for an earlier one, for which a machine was held back wrongly."""
    held: str = ""
    """The machine that is held back for the failure; empty: none is."""
    released: str = ""
    """The machine that was held back for a similar failure, wrongly, as it turns out; empty: none
    was."""
    text: str = ""
    """A clause about the decision, for a person; empty: there is nothing to say."""


def judge(
    state: RoundState, failure: Failure, node_id: str, *, is_everywhere: bool = False
) -> Judgement:
    """Decide whether a failure is due to the program or its machine, and note the failure. O(N).

    Its machine may be put into quarantine, or one released that is there for a similar failure.
    `is_everywhere`: workers on another machine failed in the same way in the same round.
    """
    fitness, machine = state.fitness, failure.machine
    alike = [each for each in fitness.failures if each.digest == failure.digest]
    machines = {each.machine for each in fitness.failures} | {machine}
    is_programs = is_everywhere or len(machines) >= PROGRAM_MACHINES
    is_programs |= any(each.is_programs for each in alike)
    former = _held(alike, failure, in_any_place=is_programs)
    fitness.changes += 1
    fitness.failures.append(failure)
    del fitness.failures[:-REMEMBERED_MAX]
    failure.is_charged = True
    failure.is_programs = former is not None
    if former is not None:
        charges = 1 if former.is_charged else 2
        former.is_charged, former.holds, former.is_programs = True, False, True
        released = _release(state, former.machine)
        text = f"it failed in the same way on another machine ({released})" if released else ""
        return Judgement(charges, released=former.machine, text=text)
    after = state.settings.hold_back_after
    if is_programs or not after:
        return Judgement(1)
    if not minimum_remains(state, machine):
        return Judgement(1)
    count = sum(each.machine == machine for each in fitness.failures)
    if machine in fitness.trial:
        why = "its workers failed, and the job had run well without it"
    elif count < after:
        return Judgement(1)
    else:
        why = "its workers failed"
        why += f" {count} times within an hour" if count > 1 else ""
    failure.is_charged, failure.holds = False, True
    known = hold_back(state, machine, node_id, Why.FAILURES, why)
    return Judgement(0, held=machine, text=held_text(known))


def _held(alike: Sequence[Failure], failure: Failure, *, in_any_place: bool) -> Failure | None:
    """Return the newest similar failure for which a machine was held back; None: there is none.

    It must be of the same rank, or the same group rank, on another machine. `in_any_place`: any
    such failure will do, because the program is at fault.
    """
    for each in reversed(alike):
        is_place = failure.rank == each.rank or failure.group_rank == each.group_rank
        is_its_place = each.machine != failure.machine and is_place
        if each.holds and (in_any_place or is_its_place):
            return each
    return None


def _release(state: RoundState, machine: str) -> str:
    """Take back a machine's last quarantine if it was for failures: the program has caused them.

    Returns a node of the machine; empty: its last quarantine was for something else, or none is
    known.
    """
    known = state.fitness.machines.get(machine)
    if known is None or known.reason is not Why.FAILURES:
        return ""
    known.hold, known.peak = None, known.peak - 1
    known.step = min(known.step, known.peak)
    _forget_if_good(state, machine)
    return known.node_id


def _forget_if_good(state: RoundState, machine: str) -> None:
    known = state.fitness.machines[machine]
    if known.peak <= 0 and not known.is_excluded:
        del state.fitness.machines[machine]


def forget_failure(state: RoundState, failure_id: str) -> None:
    """Forget a failure: an hour has passed since."""
    fitness = state.fitness
    fitness.failures = [each for each in fitness.failures if str(each.id) != failure_id]


# ---- timers, records, words


def why_held_back(state: RoundState, node_id: str) -> str:
    """Return why a node may take part in no round, or none may end for it, and for how long in all.

    Empty: it is trusted. The text stays the same meanwhile. O(1).
    """
    member = state.members.get(node_id)
    if member is None:
        return ""
    fitness, bad = state.fitness, state.bad_routes.get(node_id)
    known = fitness.machines.get(machine_of(member))
    if known is not None and known.is_excluded:
        return f"held back: {EXCLUDED}"
    if known is not None and known.hold is not None:
        return f"held back for {_length(known.hold)} s: {known.why}"
    if bad is not None and bad.hold is not None and _is_cut_off(state, member):
        host = bad.host.node_id
        why = f"it did not reach the round store of node {host}"
        return f"held back for {_length(bad.hold)} s: {why}"
    if not member.is_proven:
        return UNPROVEN
    if known is not None and known.step:
        return f"held back until the next round begins anyway: {known.why}"
    return ""


def held_text(known: BadMachine) -> str:
    """Return a sentence about a machine in quarantine: its node, for how long in all, and why."""
    assert known.hold is not None
    return f"node {known.node_id} is held back for {_length(known.hold)} s: {known.why}"


def _length(hold: Hold) -> str:
    return brief_seconds(hold.until - hold.since)


class HeldBack(Struct, frozen=True):
    """A machine, or a node that did not reach rank 0's store, that is held back, for display."""

    node: str
    machine: str
    """The name of the machine; empty: the node id stands for it."""
    why: str
    since_s: float
    """The seconds since the quarantine began; 0 if it is over."""
    left_s: float | None
    """The remaining seconds of the quarantine; None: it lasts until a person allows the machine."""
    may_wait: bool = False
    """Whether the quarantine is over, and the machine waits for a round that begins for another
    reason."""
    is_here: bool = True
    """Whether the node that is named here is in the job."""


def held_back(state: RoundState) -> list[HeldBack]:
    """Return all machines and nodes that are held back, or not trusted yet. O(their number).

    Nodes are held back because they did not reach the round store of rank 0.
    """
    fitness, found = state.fitness, []
    for machine, known in fitness.machines.items():
        member = state.members.get(known.node_id)
        name = machine if member is None or member.candidate.machine else ""
        name = "" if name == known.node_id else name
        here = member is not None
        if known.is_excluded:
            since = fitness.now - known.excluded_since
            found.append(HeldBack(known.node_id, name, EXCLUDED, since, None, is_here=here))
        elif known.hold is not None:
            since, left = fitness.now - known.hold.since, left_s(fitness, known.hold)
            found.append(HeldBack(known.node_id, name, known.why, since, left, is_here=here))
        elif known.step:
            found.append(HeldBack(known.node_id, name, known.why, 0.0, 0.0, True, here))
    for node_id, bad in state.bad_routes.items():
        if bad.hold is not None:
            why = f"it did not reach the round store of node {bad.host.node_id}"
            since, left = fitness.now - bad.hold.since, left_s(fitness, bad.hold)
            here = node_id in state.members
            found.append(HeldBack(node_id, "", why, since, left, is_here=here))
    return found
