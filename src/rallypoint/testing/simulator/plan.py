"""What one simulated job goes through: drawn from a seed, or read from a file.

A plan is text, one line for the job and one for each thing that goes wrong:

    seed=7 nodes=3 workers=1 embedded=true peace_s=60.0
    settings min_nodes=2 max_nodes=3 lease_s=6.0
    program work_s=20.0
    rates n1=1.04 n2=0.95
    at 12.5 pause n2 8.0
    at 13.0 reset n1

`at 12.5+3`: then, when the node (or any, if none is named) sends its third report from then on.
Until `peace_s` things go wrong; then all that is broken is mended, and the job must come to its
end. The faults:

    reset NODE              its connection breaks, and both ends learn of it
    cut NODE                it breaks silently: neither end is told
    isolate NODE S          for so many seconds nothing gets to it or from it
    deafen NODE S | mute NODE S         nothing gets to it; nothing gets from it
    slow S D                for S seconds every message takes up to D longer
    pause NODE S            its agent is stopped (SIGSTOP) for so long; its workers run on
    kill NODE               its agent is killed; its guard lives
    vanish NODE             the machine loses its power
    start NODE | twin NODE  a new agent; one with the same node id, while the old one may live
    fail NODE RANK CODE     a worker exits; a code under 0 is a signal
    done NODE               its workers exit with 0, as all will
    term NODE | interrupt NODE | leave NODE      SIGTERM, SIGINT, a notice to the agent
    noroute NODE S OTHER    for so long it can't reach the round store of OTHER
    storeless NODE          the round store there dies
    crash | hold S          the coordinator is killed (a stand-alone one is started anew after S
                            seconds); it is stopped for so long
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.config import (
    AgentConfig,
    Endpoint,
    OnJoin,
    RendezvousConfig,
    StopConfig,
    WorkerConfig,
)
from rallypoint.testing.simulator.workers import Program

COORDINATOR = "coordinator"
"""The machine of one that stands alone."""


class Fault(Struct, frozen=True):
    """One thing that goes wrong."""

    at_s: float
    kind: str
    node: str = ""
    value: float = 0.0
    other: str = ""
    reports: int = 0
    """It waits for so many reports of that node, or of any, and happens when the last is sent."""

    def __str__(self) -> str:
        when = f"{self.at_s:g}+{self.reports}" if self.reports else f"{self.at_s:g}"
        words = [f"at {when} {self.kind}"]
        words += [self.node] if self.node else []
        words += [f"{self.value:g}"] if self.value or self.other else []
        words += [self.other] if self.other else []
        return " ".join(words)


class Plan(Struct, frozen=True, kw_only=True):
    """One simulated job."""

    seed: int
    nodes: int
    workers: int = 1
    embedded: bool = True
    """The coordinator lives in the agent of the first node."""
    peace_s: float = 60.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    program: Program = Program(20.0)
    rates: Mapping[str, float] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of the nodes that are there from the beginning."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def coordinator_host(self) -> str:
        """The machine that hosts the coordinator."""
        return "n1" if self.embedded else COORDINATOR

    def config(self) -> AgentConfig:
        """Of every agent. Raises UsageError for settings that don't fit each other."""
        shared = dict(self.settings)
        on_join = OnJoin(shared.pop("on_join", OnJoin.RESTART.value))
        endpoint = Endpoint(self.coordinator_host, 29400)
        return AgentConfig(
            rendezvous=RendezvousConfig(
                "job", endpoint=endpoint, host_timeout_s=30.0, on_join=on_join, **shared
            ),
            workers=WorkerConfig(argv=("train",), count=self.workers),
            stop=StopConfig(restart_grace_s=2.0, shutdown_grace_s=6.0),
        )

    def __str__(self) -> str:
        head = {"seed": self.seed, "nodes": self.nodes, "workers": self.workers}
        more = {"embedded": self.embedded, "peace_s": self.peace_s}
        lines = [_pairs(head | more), "settings " + _pairs(self.settings)]
        lines += ["program " + _pairs(msgspec.to_builtins(self.program))]
        lines += ["rates " + _pairs(self.rates)] if self.rates else []
        return "\n".join([*lines, *map(str, self.faults)])


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in values.items())


def _parsed(words: list[str]) -> dict[str, Any]:
    pairs = (word.split("=", 1) for word in words)
    return {key: msgspec.json.decode(value) for key, value in pairs}


def read_plan(path: Path) -> Plan:
    """Raises ValueError for a line that is no part of a plan."""
    head: dict[str, Any] = {}
    faults: list[Fault] = []
    for line in path.read_text().splitlines():
        match line.split():
            case []:
                continue
            case [comment, *_] if comment.startswith("#"):
                continue
            case ["at", at_s, kind, *words]:
                faults.append(_fault(at_s, kind, words))
            case [("settings" | "program" | "rates") as name, *words]:
                head[name] = _parsed(words)
            case words if all("=" in word for word in words):
                head |= _parsed(words)
            case _:
                raise ValueError(f"{path}: not a line of a plan: {line!r}")
    return msgspec.convert(head | {"faults": tuple(faults)}, Plan, from_attributes=True)


def _fault(when: str, kind: str, words: list[str]) -> Fault:
    at_s, _, reports = when.partition("+")
    node = words.pop(0) if words and not _is_number(words[0]) else ""
    value = float(words.pop(0)) if words else 0.0
    other = words.pop(0) if words else ""
    return Fault(float(at_s), kind, node, value, other, int(reports or 0))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def draw(seed: int, nodes: int | None = None) -> Plan:
    """The plan of this seed."""
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
    return Plan(
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
