"""Draws what somebody without a token does to a register: an older record is put back, or the
record is removed, alone or among other faults; and an agent that makes up a newer record."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace
from tests.simulator.plan import LEADER, Fault, Plan
from tests.simulator.states import STATES

PUT_BACK_SHARE = 0.15
"""The share of jobs with a register to which this happens."""
ALONE_SHARE = 0.4
"""The share of these in which little else goes wrong."""
IN_STATE_SHARE = 0.2
BOAST_SHARE = 0.15
"""The share of these in which an agent makes up a newer record, and that alone happens."""


def with_put_back(plan: Plan, rng: Random) -> Plan:
    """The same job, perhaps with this."""
    if not plan.register or rng.random() >= PUT_BACK_SHARE:
        return plan
    if plan.any_leads and rng.random() < BOAST_SHARE:
        return _with_boast(plan, rng)
    kept = () if rng.random() < ALONE_SHARE else plan.faults
    at_s = round(plan.peace_s * rng.uniform(0.05, 0.7), 3)
    drawn: list[Fault] = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        state = rng.choice(STATES) if rng.random() < IN_STATE_SHARE else ""
        if rng.random() < 0.2:
            drawn.append(Fault(at_s, "delete", state=state))
        else:
            share = rng.choice((0.0, 0.5, 0.9, 1.0, rng.random()))
            drawn.append(Fault(at_s, "putback", "", round(share, 3), state=state))
        at_s = round(at_s + rng.choice((0.1, 1.0, 8.0)) * rng.uniform(0.5, 1.5), 3)
    near_s = round(max(0.0, drawn[0].at_s + rng.uniform(-3.0, 3.0)), 3)
    match rng.choice(("", "", "lost", "paused", "away", "all but one")):
        case "lost":
            drawn.append(Fault(near_s, rng.choice(("kill", "vanish")), LEADER))
        case "paused":
            drawn.append(Fault(near_s, "pause", LEADER, rng.choice((2.0, 12.0, 25.0))))
        case "away":
            drawn.append(Fault(near_s, "away", LEADER, rng.choice((5.0, 15.0, 30.0))))
        case "all but one":
            for name in plan.names[1:]:
                drawn.append(Fault(near_s, "kill", name))
                drawn.append(Fault(round(near_s + rng.uniform(0.5, 4.0), 3), "start", name))
    faults = sorted([*kept, *drawn], key=lambda fault: fault.at_s)
    return replace(plan, faults=tuple(faults))


def _with_boast(plan: Plan, rng: Random) -> Plan:
    name, at_s = f"n{plan.nodes + 1}", round(plan.peace_s * rng.uniform(0.05, 0.5), 3)
    boasts_at = round(at_s + rng.uniform(0.5, 10.0), 3)
    faults = (Fault(at_s, "start", name), Fault(boasts_at, "boast", name))
    settings = dict(plan.settings) | {"min_nodes": plan.nodes, "max_nodes": plan.nodes}
    return replace(plan, settings=settings, faults=faults)
