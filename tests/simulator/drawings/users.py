"""Draws what users suffer from most, one idea in each job and nothing else: what people ask for,
what schedulers do, and nodes that come and go while they wait. Every fourth seed, in turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.simulator.plan import AGENTS, LEADER, Fault, Plan
from tests.simulator.workers import Program

EVERY = 4
AFTER_S = 12.0
"""The peace begins this long after the last fault."""


def draw_user(plan: Plan, seed: int) -> Plan | None:
    """The plan of this seed, if it is one of these. Of `plan` the clocks and the workers of a node
    remain."""
    turn, rest = divmod(seed, EVERY)
    if rest:
        return None
    rng = Random(f"users {seed}")
    return _IDEAS[turn % len(_IDEAS)](plan, rng)


def _calm(
    plan: Plan, nodes: tuple[int, int, int], faults: list[Fault], program: Program, **settings: Any
) -> Plan:
    """`nodes`: the minimum, the maximum, and the number that start."""
    least, most, here = nodes
    own: dict[str, Any] = {
        "min_nodes": least,
        "max_nodes": most,
        "max_restarts": 3,
        "restart_backoff_s": 0.0,
        "restart_window_s": 0.0,
        "lease_s": 6.0,
        "join_timeout_s": 60.0,
        "last_call_s": 0.5,
        "join_settle_s": 0.0,
        "join_settle_max_s": 6.0,
        "min_growth_interval_s": 0.0,
        "on_join": "restart",
        "stop_patience_s": 0.0,
        "max_node_losses_per_hour": 100,
        "world_multiple_of": 1,
        "max_no_progress": 0,
    }
    own |= settings
    own.setdefault("heartbeat_s", own["lease_s"] / 4)
    faults = sorted(faults, key=lambda fault: fault.at_s)
    last_s = max(fault.at_s + fault.value * (fault.kind in _LAST) for fault in faults)
    return replace(
        plan,
        nodes=here,
        embedded=False,
        register="",
        peace_s=round(last_s + AFTER_S, 3),
        settings=own,
        program=program,
        faults=tuple(
            replace(fault, at_s=round(fault.at_s, 3), value=round(fault.value, 2))
            for fault in faults
        ),
    )


_LAST = frozenset({"isolate", "mute", "slow", "crash", "drag", "busy", "noroute"})
"""Kinds of faults that have a length."""
_OBEYS = Program(60.0, deaf=0.0, brittle=0.0)
_SAVES = replace(_OBEYS, listens=True)


def _window(plan: Plan, rng: Random) -> Plan:
    """Workers fail again and again, each time when the failures before count no more."""
    most, window_s = rng.choice((1, 2)), rng.choice((6.0, 8.0))
    at_s, faults = 4.0, []
    for _ in range(most + 2):
        faults.append(Fault(at_s, "fail", rng.choice(("n1", "n2")), 0.0, "1"))
        at_s += window_s * rng.uniform(1.3, 1.5) / most + rng.uniform(1.0, 2.0)
    faults += [Fault(faults[-1].at_s + 1.5 * window_s + 3.0, "fail", "n1", 0.0, "3")]
    program = replace(_OBEYS, work_s=90.0)
    return _calm(plan, (2, 2, 2), faults, program, max_restarts=most, restart_window_s=window_s)


def _flapping(plan: Plan, rng: Random) -> Plan:
    """A node that was lost often comes again, and goes while it is not trusted; then another one
    comes."""
    at_s, faults = 3.0, []
    for _ in range(3):
        faults += [Fault(at_s, "start", "x1"), Fault(at_s + 4.0, "kill", "x1")]
        at_s += 4.0 + rng.uniform(3.5, 5.0)
    faults.append(Fault(at_s, "start", "x1"))
    faults.append(Fault(at_s + rng.uniform(1.5, 3.0), rng.choice(("kill", "term")), "x1"))
    faults.append(Fault(at_s + rng.uniform(4.0, 6.0), "start", "x2"))
    program = replace(_OBEYS, work_s=100.0)
    return _calm(plan, (2, 3, 2), faults, program, lease_s=4.0)


def _growing(plan: Plan, rng: Random) -> Plan:
    """Nodes come one after the other, faster than rounds may grow."""
    at_s, faults = rng.uniform(2.0, 12.0), []
    for number in (1, 2, 3):
        faults.append(Fault(at_s, "start", f"x{number}"))
        at_s += rng.choice((2.0, 4.0, 12.0)) + rng.uniform(0.5, 3.0)
    settle_s = rng.choice((0.0, 2.0))
    return _calm(
        plan, (2, 6, 2), faults, _OBEYS, min_growth_interval_s=10.0, join_settle_s=settle_s
    )


def _spare(plan: Plan, rng: Random) -> Plan:
    """Two nodes come for one place, and the first goes while it waits."""
    at_s = rng.uniform(2.0, 3.0)
    faults = [Fault(at_s, "start", "x1"), Fault(at_s + 1.0, "start", "x2")]
    faults.append(Fault(at_s + rng.uniform(2.0, 4.0), rng.choice(("kill", "term", "vanish")), "x1"))
    return _calm(plan, (2, 3, 2), faults, _OBEYS, min_growth_interval_s=10.0, lease_s=4.0)


def _saves_twice(plan: Plan, rng: Random) -> Plan:
    """A person asks for a checkpoint, and soon after that a node is told to go."""
    at_s = rng.uniform(3.0, 6.0)
    faults = [Fault(at_s, "checkpoint"), Fault(at_s + 0.03, "slow", "", 15.0, "0.8")]
    going = rng.choice(("leave", "term"))
    faults.append(Fault(at_s + rng.uniform(0.2, 0.7), going, "n2"))
    return _calm(plan, (2, 5, 5), faults, _SAVES, lease_s=10.0)


def _called_off(plan: Plan, rng: Random) -> Plan:
    """A node comes, is to join at a checkpoint, and goes while some have saved it."""
    at_s = rng.uniform(3.0, 6.0)
    faults = [Fault(at_s, "start", "x1")]
    faults.append(Fault(at_s + rng.uniform(1.2, 2.2), rng.choice(("kill", "term")), "x1"))
    program = replace(_SAVES, save_s=3.0, ends_when_asked=rng.random() < 0.5)
    return _calm(plan, (3, 5, 4), faults, program, on_join="at-checkpoint")


def _late_drain(plan: Plan, rng: Random) -> Plan:
    """Nodes are told to go while the connection of one of them is broken: workers fail of it."""
    at_s = rng.uniform(3.0, 6.0)
    faults = [
        Fault(at_s, "isolate", "n2", rng.uniform(1.6, 2.4)),
        Fault(at_s + 0.01, "reset", "n2"),
    ]
    told_s = at_s + rng.uniform(0.1, 0.6)
    faults.append(Fault(told_s, rng.choice(("term", "leave")), "n2"))
    code = rng.choice(("1", "-15", "-9"))
    faults.append(Fault(told_s + rng.uniform(0.8, 1.3), "fail", "n3", 0.0, code))
    return _calm(plan, (2, 3, 3), faults, _OBEYS, lease_s=12.0)


def _preempted(plan: Plan, rng: Random) -> Plan:
    """A scheduler signals every process of a node, its agent last."""
    at_s = rng.uniform(3.0, 6.0)
    faults = [Fault(at_s - 1.0, "slow", "", 15.0, "1.0")]
    faults.append(Fault(at_s, "preempt", "n2", round(rng.uniform(1.3, 1.7), 2)))
    return _calm(plan, (2, 3, 3), faults, _SAVES, lease_s=10.0)


def _busy(plan: Plan, rng: Random) -> Plan:
    """A node connects again, and what it says comes when it is nearly lost, while the coordinator
    is busy."""
    at_s = rng.uniform(3.0, 6.0)
    # Six heartbeats go nowhere, then come the handshake and `Attach`, which is what waits.
    faults = [
        Fault(at_s, "cut", "n2"),
        Fault(at_s, "mute", "n2", round(rng.uniform(3.6, 4.0), 2), reports=8),
        Fault(at_s + 8.0, "busy", "", 0.9),
    ]
    drawn = _calm(plan, (2, 3, 3), faults, _OBEYS, lease_s=10.0, heartbeat_s=1.0)
    return replace(drawn, rates={})


def _away(plan: Plan, rng: Random) -> Plan:
    """A person wants a node to leave that is not connected."""
    at_s, away_s = rng.uniform(3.0, 6.0), rng.uniform(2.0, 3.0)
    faults = [Fault(at_s, "isolate", "n2", away_s)]
    faults.append(Fault(at_s + 0.1, rng.choice(("reset", "cut")), "n2"))
    faults.append(Fault(at_s + rng.uniform(0.5, 1.5), "drain", "n2"))
    program = replace(_OBEYS, work_s=40.0, listens=rng.random() < 0.5)
    return _calm(plan, (2, 3, 3), faults, program, lease_s=12.0)


def _asked_by_two(plan: Plan, rng: Random) -> Plan:
    """A checkpoint is asked for, another coordinator takes over, and more is asked for."""
    at_s = rng.uniform(3.0, 6.0)
    wishes = [rng.choice(("checkpoint", "drain", "leave")) for _ in range(2)]
    faults = [Fault(at_s, "checkpoint")]
    for number, kind in enumerate(wishes):
        node = "" if kind == "checkpoint" else f"n{number + 2}"
        faults.append(Fault(at_s + 6.0 + 5.0 * number, kind, node))
    crash = Fault(at_s + rng.uniform(0.0, 3.0), "crash", "", 0.3)
    drawn = _calm(plan, (2, 4, 4), [*faults, crash], _SAVES, lease_s=10.0)
    return replace(drawn, register="here")


def _lost_with_leader(plan: Plan, rng: Random) -> Plan:
    """A node is lost, workers fail before their nodes hear it, and the leader is lost before all
    have stopped. Or a node is lost just before its leader is, and workers of others fail of it."""
    at_s = rng.uniform(4.0, 8.0)
    node = f"n{rng.randrange(1, 5)}"
    program = replace(_OBEYS, deaf=0.5, brittle=1.0)
    if rng.random() < 0.3:
        faults = [Fault(at_s, "kill", node), Fault(at_s + rng.uniform(0.1, 1.5), "kill", LEADER)]
    else:
        faults = [Fault(at_s, "kill", node), Fault(at_s - 0.1, "slow", "", 12.0, "1.0")]
        ends_s = at_s + 0.001
        for each in ("n1", "n2", "n3"):
            faults.append(Fault(ends_s, "fail", each, 0.0, "1", state="forming"))
        kill = Fault(ends_s, "kill", LEADER, state="forming", reports=rng.choice((2, 3, 4)))
        faults.append(kill)
        program = replace(program, brittle=0.0)
    drawn = _calm(plan, (2, 6, 5), faults, program, lease_s=6.0, heartbeat_s=1.0)
    return replace(drawn, register=AGENTS, peace_s=drawn.peace_s + 60.0)


def _equal_steps(plan: Plan, rng: Random) -> Plan:
    """Workers fail again and again, and get no further."""
    at_s, faults = rng.uniform(5.0, 9.0), []
    for _ in range(4):
        faults.append(Fault(at_s, "fail", rng.choice(("n1", "n2")), 0.0, "1"))
        at_s += rng.uniform(3.0, 5.0)
    faults.append(Fault(faults[0].at_s + 0.001, "fail", "n3", 0.0, rng.choice(("1", "3"))))
    program = replace(_OBEYS, step_s=1.0)
    most = rng.choice((0, 0, 3))
    return _calm(plan, (2, 3, 3), faults, program, max_restarts=9, max_no_progress=most)


def _clock_behind(plan: Plan, rng: Random) -> Plan:
    """A coordinator is started again, and the wall clock there is behind."""
    at_s = rng.uniform(3.0, 8.0)
    faults = [Fault(at_s, "crash", "", rng.choice((0.3, 2.0)))]
    drawn = _calm(plan, (2, 3, 3), faults, _OBEYS)
    return replace(drawn, wall_step_ms=-5000)


def _no_route(plan: Plan, rng: Random) -> Plan:
    """A node does not reach rank 0, and others come meanwhile."""
    at_s = rng.uniform(2.0, 3.0)
    faults = [Fault(at_s, "noroute", "n3", 60.0, "n1"), Fault(at_s + 1.0, "fail", "n2", 0.0, "1")]
    faults += [Fault(at_s + 20.0 + 5.0 * number, "start", f"x{number}") for number in range(3)]
    program = replace(_OBEYS, work_s=100.0)
    return _calm(plan, (2, 6, 3), faults, program, lease_s=4.0)


def _people(plan: Plan, rng: Random) -> Plan:
    """Besides what goes wrong anyhow, people ask for things, schedulers signal, and the wall clocks
    of coordinators differ."""
    faults = [fault for fault in plan.faults if rng.random() < 0.5]
    for _ in range(rng.choice((1, 2, 3))):
        at_s = round(rng.uniform(2.0, 0.9 * plan.peace_s), 3)
        node = f"n{rng.randrange(1, plan.nodes + 1)}"
        kind = rng.choice(("checkpoint", "checkpoint", "restart", "drain", "preempt", "cancel"))
        value = round(rng.uniform(0.0, 1.7), 2) if kind == "preempt" else 0.0
        wish = Fault(at_s, kind, node if kind in ("drain", "preempt") else "", value)
        faults += [wish, replace(wish, at_s=round(at_s + rng.uniform(0.0, 2.0), 3))]
    return replace(
        plan,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        wall_step_ms=rng.choice((1000, -5000)),
    )


_IDEAS: tuple[Callable[[Plan, Random], Plan], ...] = (
    _window,
    _flapping,
    _growing,
    _spare,
    _saves_twice,
    _called_off,
    _late_drain,
    _preempted,
    _busy,
    _away,
    _asked_by_two,
    _lost_with_leader,
    _equal_steps,
    _clock_behind,
    _no_route,
    _people,
)
