"""Draws scenes in which several things happen to one node in an order that hardly ever comes by
chance."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec.structs import replace
from tests.simulator.plan import Fault, Plan

_LEASE_S = 4.0
_HELD_S = 8 * _LEASE_S
"""The first quarantine of a machine, and of a node that did not reach rank 0."""


def draw_scene(plan: Plan, rng: Random) -> Plan:
    """One of these, in a job of three nodes of which two suffice. Of `plan` little remains."""
    make = rng.choice((_newcomer_beside_a_bad_route, _flapper_goes_as_it_waits))
    return make(plan, rng)


def _newcomer_beside_a_bad_route(plan: Plan, rng: Random) -> Plan:
    """A node does not reach rank 0. A newcomer ends the round that begins without that node, when
    the node is about to find out again that it does not."""
    at_s = rng.uniform(4.0, 8.0)
    faults = [
        Fault(round(at_s, 3), "noroute", "n3", 60.0, "n1"),
        Fault(round(at_s + 1.0, 3), "fail", "n2", 0.0, "1"),
        Fault(round(at_s + rng.uniform(20.0, 20.2), 3), "start", "x1"),
    ]
    return _grows(plan, faults)


def _flapper_goes_as_it_waits(plan: Plan, rng: Random) -> Plan:
    """A machine is held back, waits for the next round when that is over, and goes; then a healthy
    node comes."""
    at_s, faults = rng.uniform(6.0, 12.0), []
    for _ in range(3):
        faults.append(Fault(round(at_s, 3), "kill", "n3"))
        faults.append(Fault(round(at_s + 1.0, 3), "start", "n3"))
        at_s += rng.uniform(6.0, 10.0)
    at_s += rng.choice((_HELD_S, 2 * _HELD_S)) + rng.uniform(0.0, 5.0)
    faults.append(Fault(round(at_s, 3), rng.choice(("kill", "term")), "n3"))
    faults.append(Fault(round(at_s + rng.uniform(1.0, 12.0), 3), "start", "x1"))
    return _grows(plan, faults)


def _grows(plan: Plan, faults: list[Fault]) -> Plan:
    """A job that works for long enough, and ends a round for a newcomer. No other fault comes."""
    settings: dict[str, Any] = {
        "min_nodes": 2,
        "max_nodes": 4,
        "max_restarts": 3,
        "restart_backoff_s": 0.0,
        "restart_window_s": 0.0,
        "lease_s": _LEASE_S,
        "heartbeat_s": _LEASE_S / 4,
        "join_timeout_s": 100.0,
        "on_join": "restart",
        "min_growth_interval_s": 0.0,
        "join_settle_s": 0.0,
        "max_node_losses_per_hour": 100,
    }
    end_s = max(fault.at_s for fault in faults)
    return replace(
        plan,
        nodes=3,
        workers=1,
        embedded=False,
        register="",
        rates={},
        peace_s=round(end_s + 60.0, 1),
        settings=dict(plan.settings) | settings,
        program=replace(plan.program, work_s=round(end_s + 90.0, 1), deaf=0.0, brittle=1.0),
        faults=tuple(faults),
    )
