"""Draws what hardly ever comes together by chance, of jobs that any of their agents may lead."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace
from tests.simulator.plan import AGENTS, LEADER, Fault, Plan


def draw_rare(plan: Plan, rng: Random) -> Plan:
    """One of these. Of `plan` little remains."""
    return rng.choice((_slow_swaps, _missing_node, _late_node))(plan, rng)


def _slow_swaps(plan: Plan, rng: Random) -> Plan:
    """A leader by which a round is formed when the lease of its own node may be over."""
    at_s = round(rng.uniform(0.0, 8.0), 3)
    faults = [Fault(at_s, "drag", "", 60.0, str(rng.choice((4.0, 4.5, 5.0, 6.0))))]
    for _ in range(2):
        at_s = round(at_s + rng.uniform(5.0, 15.0), 3)
        faults.append(Fault(at_s, "fail", f"n{rng.randrange(1, 3)}", 0.0, "1"))
    return _led(plan, 4.0, (2, 1), 40.0, faults)


def _missing_node(plan: Plan, rng: Random) -> Plan:
    """The leader is lost while another node is cut off, whose workers run on."""
    lease_s = rng.choice((6.0, 10.0, 15.0))
    at_s = round(rng.uniform(3.0, 15.0), 3)
    lost_s = round(at_s + rng.uniform(0.0, 0.4) * lease_s, 3)
    kinds = [rng.choice(("isolate", "mute", "pause")), rng.choice(("kill", "orphan", "vanish"))]
    cut = Fault(at_s, kinds[0], f"n{rng.randrange(1, 5)}", round(lease_s * rng.uniform(1, 3), 2))
    return _led(plan, lease_s, (4, 2), 40.0, [cut, Fault(lost_s, kinds[1], LEADER)])


def _late_node(plan: Plan, rng: Random) -> Plan:
    """A node is cut off when its job ends, and comes back when all others have left."""
    at_s = round(rng.uniform(3.0, 10.0), 3)
    node = f"n{rng.randrange(1, 4)}"
    kind = rng.choice(("isolate", "pause"))
    return _led(plan, 6.0, (3, 2), 12.0, [Fault(at_s, kind, node, rng.choice((40.0, 60.0)))])


def _led(
    plan: Plan, lease_s: float, nodes: tuple[int, int], work_s: float, faults: list[Fault]
) -> Plan:
    """`nodes`: so many, and with so few they go on."""
    settings = dict(plan.settings) | {
        "min_nodes": nodes[1],
        "max_nodes": nodes[0],
        "max_restarts": 3,
        "restart_backoff_s": 0.0,
        "lease_s": lease_s,
        "heartbeat_s": min(1.0, lease_s / 5),
        "join_timeout_s": 120.0,
    }
    return replace(
        plan,
        nodes=nodes[0],
        embedded=False,
        register=AGENTS,
        peace_s=100.0,
        settings=settings,
        program=replace(plan.program, work_s=work_s),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )
