"""Draws the plan of a seed: how many nodes, which settings, what goes wrong and when."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace
from tests.simulator.drawings.fitness import draw_bad
from tests.simulator.drawings.leaders import lost_together, with_leaders, with_liar
from tests.simulator.drawings.pairs import draw_pair
from tests.simulator.drawings.put_back import with_put_back
from tests.simulator.drawings.rare import draw_rare
from tests.simulator.drawings.scenes import draw_scene
from tests.simulator.drawings.users import draw_user
from tests.simulator.plan import COORDINATOR, SHORT_SHARE, STOP_GRACE_S, Fault, Plan
from tests.simulator.serves import SECOND
from tests.simulator.workers import Program

LEADERS_SHARE = 0.3
"""Of the others: any of their agents may lead them."""
TOGETHER_SHARE = 0.25
"""The share of jobs without a coordinator of their own that lose nodes with the leader."""
LIES_SHARE = 0.15
"""The share of these jobs in which an agent breaks its promises."""
RARE_SHARE = 0.04
"""Of the jobs: what hardly ever comes together by chance."""
LONG_SHARE, LONG_S = 0.1, 120.0
"""Of the jobs that tell of steps, and how long their workers work."""
BAD_SHARE = 0.1
"""The share of jobs in which one machine is bad, or the program is."""
SCENES_SHARE = 0.08
"""The share of jobs in which several things happen to one node, in an order that matters."""
FEW_LOSSES_SHARE = 0.15
"""The share of jobs in which the second round that loses nodes is one too many."""
GRACES_SHARE = 0.3
"""The share of jobs whose nodes have different stop graces."""
PAIRS_SHARE = 0.15
"""Of the jobs: one thing goes wrong with whoever leads, in one state."""


def draw(seed: int, nodes: int | None = None) -> Plan:
    """The plan of this seed."""
    plan = with_put_back(_draw(seed, nodes), Random(f"put back {seed}"))
    is_bad = Random(f"bad {seed}").random() < BAD_SHARE
    multiple = 1 if is_bad else _draw_multiple(Random(f"multiple {seed}"), plan)
    often = Random(f"no progress {seed}").choice((0, 0, 0, 2))
    settings = dict(plan.settings) | {"world_multiple_of": multiple, "max_no_progress": often}
    if Random(f"losses {seed}").random() < FEW_LOSSES_SHARE:
        settings["max_node_losses_per_hour"] = 1
    program = _with_steps(plan.program, Random(f"steps {seed}"))
    if nodes is None and (drawn := draw_user(plan, seed)) is not None:
        return drawn
    graces = _draw_graces(Random(f"graces {seed}"), plan)
    return replace(plan, settings=settings, program=program, graces=graces)


def _draw_graces(rng: Random, plan: Plan) -> dict[str, float]:
    """In some jobs each node gives its workers another time to stop."""
    if rng.random() >= GRACES_SHARE:
        return {}
    return {name: rng.choice((0.5, STOP_GRACE_S, 6.0)) for name in plan.names}


def _with_steps(program: Program, rng: Random) -> Program:
    """Some train for so long that a stall is a hang."""
    step_s, only_first = rng.choice((0.0, 0.05, 0.3, 1.0, 4.0)), rng.random() < 0.3
    work_s = LONG_S if step_s and rng.random() < LONG_SHARE else program.work_s
    return replace(program, step_s=step_s, only_first_tells=only_first, work_s=work_s)


def _draw(seed: int, nodes: int | None) -> Plan:
    rng = Random(f"plan {seed}")
    count = nodes or rng.choice((2, 2, 3, 3, 4, 4, 5, 6, 8))
    embedded = rng.random() < 0.5
    peace_s = rng.choice((20.0, 45.0, 90.0))
    settings = _draw_settings(rng, count)
    program = Program(
        work_s=round(rng.choice((4.0, 12.0, 30.0, 60.0)) * rng.uniform(0.8, 1.2), 1),
        deaf=rng.choice((0.0, 0.2, 0.5)),
        brittle=rng.choice((0.0, 0.5, 1.0)),
        listens=rng.random() < 0.5,
        ends_when_asked=rng.random() < 0.4,
    )
    names = [f"n{number}" for number in range(1, count + 1)]
    machines = names if embedded else [*names, COORDINATOR]
    rates = {name: round(rng.uniform(0.92, 1.08), 3) for name in machines}
    steady = rng.random() < 0.3
    plan = Plan(
        seed=seed,
        nodes=count,
        workers=rng.choice((1, 1, 1, 2)),
        embedded=embedded,
        peace_s=peace_s,
        settings=settings,
        program=program,
        rates={} if steady else rates,
        faults=_draw_faults(rng, names, embedded, peace_s),
    )
    bad = Random(f"bad {seed}")
    if bad.random() < BAD_SHARE:
        return draw_bad(plan, bad)
    scene = Random(f"one node {seed}")
    if nodes is None and scene.random() < SCENES_SHARE:
        return draw_scene(plan, scene)
    rare = Random(f"rare {seed}")
    if rare.random() < RARE_SHARE:
        return draw_rare(plan, rare)
    pairs = Random(f"pair {seed}")
    if pairs.random() < PAIRS_SHARE:
        return draw_pair(plan, pairs)
    leaders = Random(f"leaders {seed}")
    if leaders.random() < LEADERS_SHARE:
        plan, together = with_leaders(plan, leaders), Random(f"more lost {seed}")
        plan = lost_together(plan, together) if together.random() < TOGETHER_SHARE else plan
        lies = Random(f"lies {seed}")
        return with_liar(plan, lies) if lies.random() < LIES_SHARE else plan
    return plan if embedded else _with_register(plan, Random(f"register {seed}"))


def _draw_settings(rng: Random, count: int) -> dict[str, Any]:
    minimum = rng.choice((max(1, count - 1), count, max(1, count // 2)))
    growth_s = rng.choice((0.0, 0.0, 10.0))
    lease_s = rng.choice((4.0, 6.0, 10.0))
    settings: dict[str, Any] = {
        "min_nodes": minimum,
        "max_nodes": max(minimum, rng.choice((count, count, count + 1, count - 1))),
        "max_restarts": rng.choice((0, 1, 2, 3)),
        "restart_backoff_s": rng.choice((0.0, 0.0, 4.0)),
        "restart_window_s": rng.choice((0.0, 0.0, 30.0)),
        "lease_s": lease_s,
        "heartbeat_s": lease_s / 4,
        "join_timeout_s": 40.0,
        "last_call_s": rng.choice((0.5, 3.0)),
        "join_settle_s": min(growth_s, 2.0),
        "join_settle_max_s": 6.0,
        "min_growth_interval_s": growth_s,
        "on_join": rng.choice(("restart", "restart", "at-checkpoint", "hold")),
        "stop_patience_s": rng.choice((0.0, 5.0)),
        "max_node_losses_per_hour": rng.choice((3, 100)),
    }
    if rng.random() < 0.5:
        settings["reconnect_timeout_s"] = rng.choice((5.0, 20.0))
    return settings


def _draw_multiple(rng: Random, plan: Plan) -> int:
    """One that some number of nodes fits."""
    fits = rng.randint(plan.settings["min_nodes"], plan.settings["max_nodes"])
    return rng.choice((1, 1, 1, fits * rng.choice((1, plan.workers))))


_WEIGHTS: dict[str, int] = {
    "reset": 8,
    "cut": 4,
    "isolate": 4,
    "deafen": 3,
    "mute": 3,
    "slow": 5,
    "pause": 6,
    "kill": 5,
    "vanish": 3,
    "start": 4,
    "twin": 2,
    "usurp": 3,
    "tear": 4,
    "relapse": 4,
    "fail": 10,
    "term": 5,
    "interrupt": 1,
    "leave": 2,
    "noroute": 2,
    "storeless": 1,
    "crash": 2,
    "hold": 3,
}
"""How often each kind of fault is drawn."""
_AT_REPORTS = frozenset({"reset", "cut", "isolate", "deafen", "mute", "pause", "kill", "vanish"})
_AT_REPORTS |= {"crash", "hold", "term", "interrupt"}
"""What may wait for a report: what is on its way then is lost, or is not."""


def _draw_faults(
    rng: Random, names: list[str], embedded: bool, peace_s: float
) -> tuple[Fault, ...]:
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    if rng.random() < 0.3:  # Only a few kinds: what they do alone is seen more clearly.
        kinds = rng.choices(kinds, weights, k=3)
        weights = [1] * len(kinds)
    faults: list[Fault] = []
    hosts = names[1:] if embedded and rng.random() < 0.7 else names
    for _ in range(rng.choice((0, 2, 3, 4, 6, 9))):
        # Most of them are alone for a while; others fall into what the one before has done.
        at_s = rng.uniform(0.0, peace_s * 0.95)
        if faults and rng.random() < 0.4:
            at_s = min(faults[-1].at_s + rng.expovariate(0.5), peace_s * 0.98)
        kind = rng.choices(kinds, weights)[0]
        if kind in _COMPOUND:
            faults += _COMPOUND[kind](rng, round(at_s, 3), rng.choice(hosts or names))
            continue
        fault = _draw_fault(rng, kind, hosts or names, names)
        reports = rng.choice((0, 0, 1, 1, 2, 3)) if kind in _AT_REPORTS else 0
        faults.append(replace(fault, at_s=round(at_s, 3), reports=reports))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _usurp(rng: Random, at_s: float, node: str) -> list[Fault]:
    """A node is away, another agent takes its place and goes, and then it comes back."""
    away_s = rng.choice((5.0, 15.0, 25.0))
    away = Fault(at_s, rng.choice(("pause", "isolate", "mute")), node, away_s)
    twin_s = at_s + rng.uniform(0.0, 0.6) * away_s
    gone_s = twin_s + rng.uniform(0.1, 0.9) * away_s
    going = Fault(round(gone_s, 3), rng.choice(("kill", "term")), f"{node}t")
    return [away, Fault(round(twin_s, 3), "twin", node), going]


def _tear(rng: Random, at_s: float, node: str) -> list[Fault]:
    """Of several reports some arrive and are acknowledged, and the connection is lost."""
    done_s = at_s + 0.5
    again_s = done_s + rng.uniform(0.2, 2.5)
    return [
        Fault(at_s, "slow", "", 6.0, "1.0"),
        Fault(done_s, "done", node),
        Fault(round(again_s, 3), rng.choice(("reset", "cut")), node),
    ]


def _relapse(rng: Random, at_s: float, node: str) -> list[Fault]:
    """A node is away until it is lost, and what it hears first when it is back is lost too."""
    away_s = rng.choice((6.0, 12.0))
    again = Fault(
        round(at_s + away_s - 0.5, 3),
        rng.choice(("reset", "cut")),
        node,
        reports=rng.choice((2, 3, 3, 4)),
    )
    return [Fault(at_s, rng.choice(("mute", "isolate")), node, away_s), again]


_COMPOUND = {"usurp": _usurp, "tear": _tear, "relapse": _relapse}
"""Faults that do something together which they hardly do by chance."""


def _draw_fault(rng: Random, kind: str, hosts: list[str], names: list[str]) -> Fault:
    node = rng.choice(hosts)
    length_s = round(rng.choice((0.5, 2.0, 5.0, 12.0, 25.0)) * rng.uniform(0.5, 1.5), 2)
    match kind:
        case "isolate" | "deafen" | "mute" | "pause":
            return Fault(0.0, kind, node, length_s)
        case "slow":
            return Fault(0.0, kind, "", length_s, str(rng.choice((0.2, 1.0, 3.0))))
        case "fail":
            code = rng.choice((1, 1, 3, -9, -11, -15))
            return Fault(0.0, kind, node, 0.0, str(code))
        case "noroute":
            return Fault(0.0, kind, node, length_s, rng.choice(names))
        case "crash" | "hold":
            return Fault(0.0, kind, "", length_s)
        case "start":
            return Fault(0.0, kind, f"x{rng.randrange(1, 4)}")
        case _:
            return Fault(0.0, kind, node)


def _with_register(plan: Plan, rng: Random) -> Plan:
    """Two of three stand-alone coordinators have one."""
    if rng.random() < 1 / 3:
        return plan
    faults = list(plan.faults)
    register = rng.choice(("here", "elsewhere"))
    if rng.random() < 0.3:
        return _with_short_crashes(plan, rng)
    for _ in range(rng.choice((1, 2, 3, 5))):
        at_s = round(rng.uniform(0.0, plan.peace_s * 0.95), 3)
        if faults and rng.random() < 0.4:
            at_s = round(min(rng.choice(faults).at_s + rng.expovariate(0.5), plan.peace_s), 3)
        length_s = round(rng.choice((0.1, 1.0, 4.0, 12.0, 25.0)) * rng.uniform(0.5, 1.5), 2)
        machine = rng.choice(("", "", COORDINATOR, SECOND))
        reports = rng.choice((0, 0, 1, 2, 3, 4))
        match rng.choices(list(_OF_REGISTERS), list(_OF_REGISTERS.values()))[0]:
            case "crash" | "hold" as kind:
                faults.append(Fault(at_s, kind, "", length_s, reports=reports))
            case "drag":
                slow_s = str(rng.choice((0.1, 1.0, 4.0, 15.0)))
                faults.append(Fault(at_s, "drag", "", length_s, slow_s, reports))
            case "away" | "lapse" | "readonly" | "stale" as kind:
                faults.append(Fault(at_s, kind, machine, length_s))
            case "second":
                faults.append(Fault(at_s, "second"))
            case "divert" | "lose" as kind:
                faults.append(Fault(at_s, kind, "", length_s))
            case _:
                faults += _succession(rng, at_s)
    return replace(plan, register=register, faults=_sorted(faults))


_OF_REGISTERS = {
    "crash": 5,
    "second": 1,
    "divert": 1,
    "drag": 3,
    "away": 3,
    "lapse": 4,
    "hold": 3,
    "succession": 3,
    "readonly": 1,
    "stale": 2,
    "lose": 2,
}
"""How often each of these is drawn where a coordinator has a register."""


def _succession(rng: Random, at_s: float) -> list[Fault]:
    """Another coordinator takes over from one that is dead, stopped, or without its register."""
    away_s = round(rng.uniform(8.0, 30.0), 2)
    loss = rng.choice((Fault(at_s, "hold", "", away_s), Fault(at_s, "crash", "", away_s)))
    if rng.random() < 0.3:
        loss = Fault(at_s, "away", COORDINATOR, away_s)
    divert = Fault(round(at_s + rng.uniform(0.0, 3.0), 3), "divert", "", away_s)
    return [Fault(round(at_s * rng.random(), 3), "second"), loss, divert]


def _with_short_crashes(plan: Plan, rng: Random) -> Plan:
    """Nothing goes wrong but that coordinators are lost, each for less than a lease."""
    lease_s = plan.settings["lease_s"]
    number, at_s = rng.choice((1, 1, 2, 4)), 0.0
    faults = []
    for _ in range(number):
        at_s = round(at_s + lease_s * rng.uniform(1.0, 1.5) + rng.choice((0.0, 8.0)), 3)
        away_s = round(rng.uniform(0.02, SHORT_SHARE) * lease_s, 2)
        reports = rng.choice((0, 1, 2, 3, 4, 6)) if number == 1 else 0
        faults.append(
            Fault(
                at_s if number > 1 else rng.choice((0.0, at_s)),
                "crash",
                "",
                away_s,
                reports=reports,
            )
        )
    settings = dict(plan.settings) | {"min_nodes": plan.nodes, "max_nodes": plan.nodes}
    return replace(plan, register="here", settings=settings, faults=tuple(faults))


def _sorted(faults: list[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
