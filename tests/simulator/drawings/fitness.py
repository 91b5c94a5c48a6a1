"""Draws jobs with bad machines (`core/fitness.py`)."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace
from tests.simulator.plan import AGENTS, LEADER, Fault, Plan

NEWCOMER = "x1"
PASSED_S = 75.0
"""A job that has run for so long has passed its probation, whatever its clocks."""


def draw_bad(plan: Plan, rng: Random) -> Plan:
    """A job of three to five nodes in which one machine is bad, or the program is; of `plan` little
    remains. In a third of them another node leads meanwhile."""
    count = rng.choice((3, 4, 5))
    lease_s = rng.choice((4.0, 6.0, 10.0))
    settings: dict[str, Any] = dict(plan.settings) | {
        "min_nodes": rng.choice((count - 1, max(count - 2, 1))),
        "max_nodes": count + 1,
        "max_restarts": rng.choice((1, 2, 3)),
        "restart_backoff_s": 0.0,
        "restart_window_s": 0.0,
        "lease_s": lease_s,
        "heartbeat_s": lease_s / 4,
        "join_timeout_s": 100.0,
        "on_join": "restart",
        "max_node_losses_per_hour": 3,
    }
    program = replace(plan.program, work_s=float(rng.choice((150, 220))), deaf=0.0)
    make = rng.choice((_newcomer, _newcomer, _full_newcomer, _lame, _full, _flapping, _broken))
    faults = make(rng, count, settings)
    if make is _broken:
        program = replace(program, broken_s=rng.choice((0.2, 3.0)))
    register = rng.choice(("", AGENTS, AGENTS))
    if register and faults and rng.random() < 0.5:
        at_s = round(faults[-1].at_s + rng.uniform(0.5, 40.0), 3)
        faults.append(Fault(at_s, "kill", LEADER))
    embedded = not register and rng.random() < 0.5
    peace_s = max([*(fault.at_s for fault in faults), 60.0]) + rng.uniform(20.0, 120.0)
    return replace(
        plan,
        nodes=count,
        embedded=embedded,
        register=register,
        peace_s=round(peace_s, 1),
        settings=settings,
        program=program,
        faults=tuple(faults),
    )


def _newcomer(rng: Random, count: int, settings: dict[str, Any]) -> list[Fault]:
    """Workers on a newcomer fail, once the job has run well without it."""
    settings["max_restarts"] = rng.choice((0, 0, 0, 1))
    at_s = round(PASSED_S + rng.uniform(0.0, 30.0), 3)
    after_s = rng.choice((0.2, 2.0, 20.0, 45.0))
    return [Fault(at_s, "lame", NEWCOMER, after_s, "1"), Fault(at_s, "start", NEWCOMER)]


def _full_newcomer(rng: Random, count: int, settings: dict[str, Any]) -> list[Fault]:
    """A newcomer that can't start workers."""
    settings["max_restarts"] = 0
    at_s = round(rng.uniform(15.0, 60.0), 3)
    return [Fault(at_s, "full", NEWCOMER), Fault(at_s, "start", NEWCOMER)]


def _lame(rng: Random, count: int, settings: dict[str, Any]) -> list[Fault]:
    """Workers on a node that runs fail, in each round or in each second one."""
    settings["max_restarts"] = rng.choice((1, 2))
    at_s = round(rng.uniform(10.0, 60.0), 3)
    node, every = f"n{count}", rng.choice(("1", "2"))
    lame = Fault(at_s, "lame", node, rng.choice((0.2, 5.0)), every)
    return [lame, Fault(round(at_s + 1.0, 3), "fail", node, 0.0, "1")]


def _full(rng: Random, count: int, settings: dict[str, Any]) -> list[Fault]:
    """The disk of a node that runs fills up, and then a worker of another one fails."""
    settings["max_restarts"] = 1
    at_s = round(rng.uniform(10.0, 60.0), 3)
    other = Fault(round(at_s + rng.uniform(1.0, 10.0), 3), "fail", "n2", 0.0, "1")
    return [Fault(at_s, "full", f"n{count}"), other]


def _flapping(rng: Random, count: int, settings: dict[str, Any]) -> list[Fault]:
    """A node is lost again and again, more often than the job allows."""
    settings["max_node_losses_per_hour"] = rng.choice((1, 2))
    node, at_s, faults = f"n{count}", rng.uniform(10.0, 20.0), []
    for _ in range(7):
        faults.append(Fault(round(at_s, 3), "kill", node))
        faults.append(Fault(round(at_s + 2.0, 3), "start", node))
        at_s += rng.uniform(6.0, 12.0)
    return faults


def _broken(rng: Random, count: int, settings: dict[str, Any]) -> list[Fault]:
    """The program fails on every node."""
    return []
