"""Draws one fault in one state of a job that any of its agents may lead: every pair of `FAULTS` and
`STATES` in its turn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace
from tests.simulator.plan import AGENTS, LEADER, Fault, Plan
from tests.simulator.states import STATES

from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.leading import CONSENT_LEASES

LEASES_S = (4.0, 6.0, 10.0, 15.0)
AFTER_S = 60.0
"""So long the job has when nothing is wrong any more, before the peace."""
_Draw = Callable[[Random, float], list[Fault]]


def _of_leader(kind: str) -> _Draw:
    return lambda rng, lease_s: [Fault(0.0, kind, LEADER)]


def _past_hold_s(rng: Random, lease_s: float) -> float:
    """Long enough for another one to lead meanwhile."""
    return round(HOLD_S + lease_s * rng.uniform(1.0, 3.0), 2)


def _for_long(*kinds: str) -> _Draw:
    def drawn(rng: Random, lease_s: float) -> list[Fault]:
        length_s = _past_hold_s(rng, lease_s)
        return [Fault(0.0, kind, LEADER, length_s) for kind in kinds]

    return drawn


def _slow_for_leader(rng: Random, lease_s: float) -> list[Fault]:
    return [Fault(0.0, "drag", LEADER, _past_hold_s(rng, lease_s), "15.0")]


def _of_register(kind: str, other: str = "") -> _Draw:
    return lambda rng, lease_s: [Fault(0.0, kind, "", _past_hold_s(rng, lease_s), other)]


def _away_shortly(rng: Random, lease_s: float) -> list[Fault]:
    return [Fault(0.0, "away", "", round((HOLD_S + lease_s) * rng.uniform(0.2, 0.9), 2))]


def _away_long(rng: Random, lease_s: float) -> list[Fault]:
    longest_s = HOLD_S + CONSENT_LEASES * lease_s
    return [Fault(0.0, "away", "", round(longest_s * rng.uniform(1.2, 3.0), 2))]


FAULTS: dict[str, _Draw] = {
    "leader killed": _of_leader("kill"),
    "leader's machine lost": _of_leader("vanish"),
    "leader killed, its record not marked": _of_leader("orphan"),
    "leader stopped past its hold": _for_long("pause"),
    "leader stopped between swap and telling": _for_long("catch"),
    "leader cut off from the register": _for_long("away"),
    "leader cut off from the agents": _for_long("isolate"),
    "leader cut off from both": _for_long("isolate", "away"),
    "leader told to go": _of_leader("term"),
    "register away shortly": _away_shortly,
    "register away for long": _away_long,
    "register slow": _of_register("drag", "2.0"),
    "register slower than the hold": _of_register("drag", "15.0"),
    "register slower than the hold for the leader": _slow_for_leader,
    "register read-only": _of_register("readonly"),
    "register without answers": _of_register("lapse"),
    "register stale": _of_register("stale"),
    "register loses what is not durable": _of_register("lose"),
}
PAIRS = tuple((fault, state) for fault in FAULTS for state in STATES)


def pair_plan(plan: Plan, fault: str, state: str, rng: Random) -> Plan:
    """This fault in this state, and nothing else that is wrong. Of `plan` its nodes remain."""
    nodes = max(3, plan.nodes)
    lease_s = rng.choice(LEASES_S)
    settings: dict[str, Any] = dict(plan.settings) | {
        "min_nodes": nodes - 1,
        "max_nodes": nodes,
        "max_restarts": 3,
        "lease_s": lease_s,
        "heartbeat_s": min(1.0, lease_s / 5),
        "join_timeout_s": 120.0,
    }
    program = replace(plan.program, work_s=rng.choice((12.0, 12.0, 30.0)))
    at_s, before = _way_to(state, settings, rng, nodes)
    if state == "notice":
        program = replace(program, listens=True)
    aimed = [
        replace(each, at_s=at_s, state=state, reports=0) for each in FAULTS[fault](rng, lease_s)
    ]
    lasts_s = max(each.value for each in aimed)
    faults = sorted([*before, *aimed], key=lambda each: each.at_s)
    return Plan(
        seed=plan.seed,
        nodes=nodes,
        workers=plan.workers,
        embedded=False,
        register=AGENTS,
        peace_s=round(at_s + program.work_s + lasts_s + AFTER_S, 3),
        settings=settings,
        program=program,
        rates=plan.rates,
        faults=tuple(faults),
    )


def _way_to(
    state: str, settings: dict[str, Any], rng: Random, nodes: int
) -> tuple[float, list[Fault]]:
    """From when on the fault may happen, and what brings the job into this state."""
    at_s = round(rng.uniform(2.0, 8.0), 3)
    node = f"n{rng.randrange(1, nodes + 1)}"
    match state:
        case "forming":
            settings["min_nodes"] = settings["max_nodes"] = nodes + 1
            return at_s, [Fault(round(at_s + rng.uniform(0.1, 12.0), 3), "start", "x1")]
        case "last-call":
            settings["max_nodes"] = nodes + 1
            settings["last_call_s"] = 3.0
            return 0.0, []
        case "backoff":
            settings["restart_backoff_s"] = 4.0
            return at_s, [Fault(at_s, "fail", node, 0.0, "1")]
        case "notice":
            return at_s, [Fault(at_s, "leave", node)]
        case "finishing":
            done = rng.sample(range(1, nodes + 1), nodes - nodes // 2)
            return at_s, [Fault(at_s, "done", f"n{number}") for number in done]
        case "running":
            return at_s, []
        case _:
            return 0.0, []


def draw_pair(plan: Plan, rng: Random) -> Plan:
    """Any of them."""
    return pair_plan(plan, *rng.choice(PAIRS), rng)
