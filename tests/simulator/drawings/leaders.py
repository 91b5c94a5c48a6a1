"""Draws what befalls a job that any of its agents may lead: mostly the one that leads."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.simulator.plan import (
    AGENTS,
    AWAY_SLACK_S,
    BRIEFLY,
    FORMER,
    LEADER,
    MOMENT_S,
    SHORT_SHARE,
    Fault,
    Plan,
)
from tests.simulator.states import STATES

from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.leading import CONSENT_LEASES, HEIRS_ONLY_LEASES

GENTLE_SHARE = 0.2
STATE_SHARE = 0.2
"""Of what goes wrong: it waits for a state of the job."""
LONG_AWAY_S = 180.0
AFTER_S = 60.0
"""So long the job has when its register is back, before the peace."""


def with_leaders(plan: Plan, rng: Random) -> Plan:
    """The same job, without a coordinator of its own."""
    settings = dict(plan.settings)
    lease_s = rng.choice((4.0, 6.0, 10.0, 15.0, 15.0, 30.0))
    # As the command line has it: promises last for half a lease.
    settings["lease_s"], settings["heartbeat_s"] = lease_s, min(1.0, lease_s / 5)
    # Who has no place in a world whose nodes are all gone may claim so late.
    until_s = with_margin(HOLD_S) + HEIRS_ONLY_LEASES * lease_s
    settings["join_timeout_s"] = max(40.0, 10.0 + 1.2 * until_s)
    if rng.random() < 0.7:
        settings.pop("reconnect_timeout_s", None)
    if rng.random() < GENTLE_SHARE:
        return _gentle(plan, settings, rng)
    # One is often clearer than many.
    kept = [fault for fault in plan.faults if rng.random() < 0.4 and fault.kind != "crash"]
    at_s, peace_s = plan.peace_s * rng.uniform(0.05, 0.5), plan.peace_s
    faults: list[Fault] = kept
    for _ in range(rng.choice((1, 1, 2, 3))):
        drawn = rng.choices(_KINDS, _WEIGHTS)[0](rng, round(at_s, 3), lease_s)
        if rng.random() < STATE_SHARE:
            drawn[0] = replace(drawn[0], state=rng.choice(STATES))
        faults += drawn
        peace_s = max([peace_s, *(each.at_s + _lasts(each) for each in drawn)])
        at_s += rng.choice((0.5, 3.0, 15.0)) + rng.expovariate(0.2)
    return replace(
        plan,
        embedded=False,
        register=AGENTS,
        peace_s=round(peace_s, 3),
        settings=settings,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _gentle(plan: Plan, settings: dict[str, Any], rng: Random) -> Plan:
    """Nothing that a worker may notice; see `Plan.is_gentle`."""
    lease_s, nodes = settings["lease_s"], max(2, plan.nodes - rng.randrange(2))
    settings |= {"min_nodes": nodes, "max_nodes": nodes}
    at_s = round(rng.choice((0.5, 3.0, 12.0, 20.0)) * rng.uniform(0.5, 1.5), 3)
    if rng.random() < 0.5:
        longest_s = 0.9 * (HOLD_S + CONSENT_LEASES * lease_s) - AWAY_SLACK_S
        away_s = round(longest_s * rng.choice((1.0, rng.random())) - 0.01, 2)
        fault = Fault(at_s, "away", "", away_s)
    else:
        moment_s = round(min(MOMENT_S, 2 * SHORT_SHARE * lease_s) * rng.random(), 2)
        fault = Fault(at_s, *rng.choice(BRIEFLY), moment_s, reports=_reports(rng))
    peace_s = max(plan.peace_s, at_s + fault.value)
    return replace(
        plan,
        embedded=False,
        register=AGENTS,
        peace_s=peace_s,
        settings=settings,
        faults=(fault,),
    )


def _lasts(fault: Fault) -> float:
    return fault.value + AFTER_S if fault.kind == "away" and fault.value > AFTER_S else 0.0


def _reports(rng: Random) -> int:
    return rng.choice((0, 1, 1, 2, 3, 5))


def _loss(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """It dies, with or without its machine."""
    kind = rng.choice(("kill", "kill", "orphan", "vanish"))
    return [Fault(at_s, kind, LEADER, reports=_reports(rng))]


def _pause(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """For less than its hold, or for longer: others may lead when it goes on."""
    length_s = rng.choice((2.0, 6.0, 11.0, 14.0, 30.0, lease_s / 2, 2 * lease_s))
    length_s = round(length_s * rng.uniform(0.8, 1.2), 2)
    if rng.random() < 0.3:
        return [Fault(at_s, "catch", LEADER, length_s)]
    return [Fault(at_s, "pause", LEADER, length_s, reports=_reports(rng))]


def _cut_off(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """From the register, from the agents, or from both; or from the register, and one of those that
    might lead next from it."""
    longest_s = rng.choice((5.0, 13.0, 25.0, 40.0, lease_s, lease_s, 2 * lease_s, 3 * lease_s))
    length_s = round(longest_s * rng.uniform(0.8, 1.2), 2)
    kind = rng.choice(("isolate", "isolate", "mute", "deafen"))
    cut, away = Fault(at_s, kind, LEADER, length_s), Fault(at_s, "away", LEADER, length_s)
    match rng.choice(("agents", "register", "both", "slow", "heir")):
        case "agents":
            return [cut]
        case "register":
            return [away]
        case "both":
            return [cut, away]
        case "heir":
            return [away, replace(cut, kind="isolate", node=f"n{rng.randrange(1, 4)}")]
        case _:
            slow_s = str(rng.choice((1.0, 3.0)))
            return [away, Fault(at_s, "slow", "", length_s, slow_s)]


def _away(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """The register is, from everywhere."""
    length_s = rng.choice((3.0, 15.0, 40.0, 40.0, LONG_AWAY_S))
    faults = [Fault(at_s, "away", "", length_s)]
    if rng.random() < 0.3:
        later_s = round(at_s + rng.uniform(0.0, min(length_s, 20.0)), 3)
        faults += rng.choice((_loss, _pause))(rng, later_s, lease_s)
    return faults


def _drag(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """It is slow, perhaps slower than the hold; loses answers, or power; can't be written, or is
    read as it was."""
    length_s = round(rng.choice((5.0, 20.0, 40.0)) * rng.uniform(0.8, 1.2), 2)
    match rng.choice(("drag", "drag", "lapse", "lapse", "readonly", "stale", "lose")):
        case "drag":
            slow_s = str(rng.choice((0.1, 1.0, 4.0, 15.0)))
            return [Fault(at_s, "drag", rng.choice(("", LEADER)), length_s, slow_s)]
        case "lose":
            return [Fault(at_s, "lose", "", length_s)]
        case kind:
            return [Fault(at_s, kind, rng.choice(("", LEADER)), length_s)]


def _half_recorded(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """It is lost when it has heard something that it could not record yet."""
    node = f"n{rng.randrange(1, 4)}"
    kind, code = rng.choice((("fail", "1"), ("fail", "1"), ("done", ""), ("leave", "")))
    told_s = at_s + rng.uniform(0.1, 2.0)
    return [
        Fault(at_s, "drag", "", 8.0, str(rng.choice((2.0, 4.0, 15.0)))),
        Fault(round(told_s, 3), kind, node, 0.0, code),
        *_loss(rng, round(told_s + rng.uniform(0.1, 4.0), 3), lease_s),
    ]


def _killed_asleep(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """It is stopped, another one leads, and then it is killed."""
    length_s = round(HOLD_S + lease_s + 10.0, 2)
    killed_s = at_s + with_margin(HOLD_S) + rng.uniform(0.5, lease_s + 5.0)
    return [Fault(at_s, "pause", LEADER, length_s), Fault(round(killed_s, 3), "kill", FORMER)]


def _leave(rng: Random, at_s: float, lease_s: float) -> list[Fault]:
    """It is told to go, and perhaps it dies while it does."""
    faults = [Fault(at_s, rng.choice(("term", "leave")), LEADER)]
    if rng.random() < 0.3:
        later_s = round(at_s + rng.uniform(0.0, 3.0), 3)
        faults += _loss(rng, later_s, lease_s)
    return faults


def lost_together(plan: Plan, rng: Random) -> Plan:
    """The same job, of which the leader is lost with other nodes, among other faults or alone."""
    if plan.is_gentle:
        return plan
    at_s = round(plan.peace_s * rng.uniform(0.05, 0.6), 3)
    kept = plan.faults if rng.random() < 0.5 else ()
    drawn = _together(rng, plan.nodes, at_s, plan.config().rendezvous.lease_s)
    faults = sorted([*kept, *drawn], key=lambda fault: fault.at_s)
    return replace(plan, faults=tuple(faults))


def with_liar(plan: Plan, rng: Random) -> Plan:
    """The same job, in which an heir breaks its promises, or promises for another one, while the
    leader has lost the register."""
    if plan.is_gentle:
        return plan
    at_s, length_s = round(rng.uniform(2.0, 12.0), 3), rng.choice((15.0, 25.0, 40.0))
    liar, victim, *others = rng.sample(plan.names, plan.nodes)
    faults = [Fault(round(at_s + rng.uniform(0.0, 2.0), 3), "away", LEADER, length_s)]
    if rng.random() < 0.5:
        faults.append(Fault(at_s, "lie", liar))
        for other in (victim, *others):
            kind = rng.choice(("away", "away", "isolate", ""))
            faults += [Fault(at_s, kind, other, length_s)] if kind else []
    else:  # It promises for a node that leads next, while no other one can.
        faults += [Fault(at_s, "lie", liar, float(victim[1:]))]
        faults += [Fault(at_s, "away", each, length_s) for each in (liar, *others)]
        faults.append(Fault(at_s, "isolate", victim, length_s))
    kept = plan.faults if rng.random() < 0.3 else ()
    peace_s = max(plan.peace_s, round(at_s + length_s, 3))
    faults = sorted([*kept, *faults], key=lambda fault: fault.at_s)
    return replace(plan, faults=tuple(faults), peace_s=peace_s)


def _together(rng: Random, nodes: int, at_s: float, lease_s: float) -> list[Fault]:
    """The leader and other nodes are lost. Perhaps agents start on their machines later."""
    names = [f"n{number}" for number in range(1, nodes + 1)]
    lost = names if rng.random() < 0.5 else rng.sample(names, 1)
    kinds = rng.choice((("kill",), ("vanish",), ("kill", "orphan", "vanish")))
    faults = [Fault(at_s, rng.choice(kinds), LEADER)]
    again_s = rng.choice((0.5, 3.0, lease_s, 3 * lease_s))
    has_again = rng.random() < 0.7
    for name in lost:
        lost_s = at_s + rng.choice((0.0, 0.01, 0.3, 5.0)) * rng.random()
        faults.append(Fault(round(lost_s, 3), rng.choice(kinds), name))
        if has_again:
            faults.append(Fault(round(lost_s + again_s * rng.uniform(0.5, 1.5), 3), "start", name))
    return faults


_Draw = Callable[[Random, float, float], list[Fault]]
_KINDS: tuple[_Draw, ...] = (
    _loss,
    _pause,
    _cut_off,
    _away,
    _drag,
    _leave,
    _half_recorded,
    _killed_asleep,
)
_WEIGHTS = (6, 5, 6, 3, 3, 3, 3, 1)
