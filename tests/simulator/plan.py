"""The plan of one simulated job: drawn from a seed, or read from a file.

A plan is text, one line for the job and one for each thing that goes wrong:

    seed=7 nodes=3 workers=1 embedded=true peace_s=60.0
    settings min_nodes=2 max_nodes=3 lease_s=6.0
    program work_s=20.0
    rates n1=1.04 n2=0.95
    graces n2=6.0
    at 12.5 pause n2 8.0
    at 13.0 reset n1

`graces`: seconds that some nodes give their workers to stop (`--restart-grace`); others give 2 s.
`at 12.5+3`: then, when the node (or any, if none is named) sends its third report from then on.
`at 12.5@enrolling`: then, when the job is in that state (`states.py`); `at 12.5@enrolling+3`: and
its third report after that.
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
    preempt NODE S          its workers and witness get SIGTERM, and its agent so much later
    drain NODE              a person wants it to leave the job
    checkpoint | restart | cancel       a person wants that of the job
    busy S                  the coordinator does not look at its connections for so long, when its
                            next timer ends
    noroute NODE S OTHER    for so long it can't reach the round store of OTHER
    storeless NODE          the round store there dies
    lame NODE S K           until the peace a worker there fails S seconds after it was started, in
                            each K-th round of this machine
    full NODE               until the peace no worker can be started there: its disk is full
    crash | hold S          the coordinator is killed (a stand-alone one is started anew after S
                            seconds); it is stopped for so long

Where a stand-alone coordinator leads by a register (`register="here"`, or "elsewhere"):

    second                  another coordinator is started, on another machine
    divert S                for so long new connections reach the one that does not lead
    drag [MACHINE] S D      for S seconds every way to the register, and back, takes up to D longer
    away [MACHINE] S        for so long the register can't be reached, from there or from anywhere
    lapse [MACHINE] S       for so long calls of it may have no answer; then they have been carried
                            out, or are carried out later, two minutes at most, or never
    readonly [MACHINE] S    for so long nothing can be stored
    stale [MACHINE] S       for so long what is read may be what was read before, a minute ago at
                            most
    lose S                  its server loses its power before who stores the next value is told, and
                            that value with it, and is away for so long
    putback X | delete      somebody without the token puts an earlier value back, the first one for
                            X=0, the last but one for X=1; or removes the value

Where any agent may lead by one (`register="agents"`) there is no other coordinator. Each fault of a
node may be one of "leader", whoever leads then, or of "former", who led before. A swap of the
leader counts as one of its reports. There, besides:

    orphan NODE             its agent is killed, and the guard kills the workers, but does not reach
                            the register
    catch NODE S            its agent is stopped for so long when it stores the next value, before
                            it is told so
    lie NODE [N]            from now on its agent claims in spite of its promises, and goes on
                            promising until it knows that it leads; or it promises half of the time
                            for the N-th node of the world
    boast NODE              it attaches again, now and always, with a newer position of the record
                            than any leader has told it
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from tests.simulator.workers import Program

from rallypoint.config import (
    AgentConfig,
    Endpoint,
    OnJoin,
    RendezvousConfig,
    StopConfig,
    WorkerConfig,
)
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.leading import CONSENT_LEASES
from rallypoint.core.text import is_number
from rallypoint.errors import UsageError

COORDINATOR = "coordinator"
"""The machine of one that stands alone."""
LEADER = "leader"
"""Whichever machine leads."""
FORMER = "former"
"""The one that led before."""
AGENTS = "agents"
SHORT_SHARE = 0.15
"""Of the lease: so long a coordinator may be away, and its agents come back in time."""

STOP_GRACE_S = 2.0
AWAY_SLACK_S = 6.0
"""Since the last swap, and until the register is asked again."""
MOMENT_S = 2.0
PROMPT = frozenset({"fail", "done", "kill", "vanish", "start", "term", "leave", "interrupt"})
OF_ONE = frozenset({"lame", "full", "kill", "start"})
"""Faults of one machine that is bad."""
PUT_BACK = ("putback", "delete")
BRIEFLY = [(kind, LEADER) for kind in ("pause", "isolate", "mute", "deafen")]


class Fault(Struct, frozen=True):
    """One thing that goes wrong."""

    at_s: float
    kind: str
    node: str = ""
    value: float = 0.0
    other: str = ""
    reports: int = 0
    """It waits for so many reports of that node, or of any, and happens when the last is sent."""
    state: str = ""
    """But first for this state of the job."""

    def __str__(self) -> str:
        when = f"{self.at_s:g}@{self.state}" if self.state else f"{self.at_s:g}"
        when += f"+{self.reports}" if self.reports else ""
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
    register: str = ""
    """There is one, by which a stand-alone coordinator leads: "here", where it knows which
    processes of its machine are gone, or "elsewhere". Or any agent may: "agents"."""
    peace_s: float = 60.0
    wall_step_ms: int = 1000
    """The wall clock of each next coordinator is later by this than that of the one before."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    program: Program = Program(20.0)
    rates: Mapping[str, float] = field(default_factory=dict)
    graces: Mapping[str, float] = field(default_factory=dict)
    """How long the workers of each node may take to stop, where that is not `STOP_GRACE_S`."""
    faults: tuple[Fault, ...] = ()

    @property
    def names(self) -> list[str]:
        """Of the nodes that are there from the beginning."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    @property
    def fewest_nodes(self) -> int:
        """That can work: at least the minimum, and a multiple of workers."""
        least, multiple = self.settings["min_nodes"], self.settings.get("world_multiple_of", 1)
        return next(n for n in range(least, least + multiple) if n * self.workers % multiple == 0)

    @property
    def coordinator_host(self) -> str:
        """The machine that hosts the coordinator, where that is always the same."""
        return "n1" if self.embedded else COORDINATOR

    @property
    def any_leads(self) -> bool:
        """Any of the agents may."""
        return self.register == AGENTS

    @property
    def is_prompt(self) -> bool:
        """All clocks run alike, and nothing delays what nodes say."""
        return not self.rates and all(fault.kind in PROMPT for fault in self.faults)

    @property
    def one_is_bad(self) -> bool:
        """One machine alone is bad, and the minimum remains without it."""
        kinds = {fault.kind for fault in self.faults}
        if not kinds & {"lame", "full"} and [f.kind for f in self.faults].count("kill") < 4:
            return False
        bad = {fault.node for fault in self.faults if fault.kind != "fail"}
        remain = [name for name in self.names if name not in bad]
        is_host = self.embedded and self.coordinator_host in bad
        is_enough = len(remain) >= self.settings["min_nodes"]
        is_one = kinds <= OF_ONE | {"fail"} and len(bad) == 1 and not bad & {LEADER, FORMER}
        fits = self.settings.get("world_multiple_of", 1) == 1
        return is_one and is_enough and not is_host and fits

    @property
    def is_of_lame_newcomer(self) -> bool:
        """The workers of a machine that joins later fail."""
        return any(each.kind == "lame" and each.node not in self.names for each in self.faults)

    @property
    def charges_at_most(self) -> int:
        """The number of restarts that one bad machine may cost; none, if it came when the job had
        run well without it."""
        return int(any(fault.node in self.names for fault in self.faults))

    @property
    def slow_way_s(self) -> float:
        """The longest time that something is on its way to the register."""
        drags = (fault for fault in self.faults if fault.kind == "drag")
        return max((float(fault.other or 0.0) for fault in drags), default=0.0)

    @property
    def is_gentle(self) -> bool:
        """Nothing goes wrong but that the coordinator is away, a few times, for less than a lease:
        no worker may notice."""
        if self.any_leads:
            return self._is_gentle_for_leaders
        if not self.faults:
            return True
        lease_s, ends = self.settings["lease_s"], [fault.at_s for fault in self.faults]
        is_one = len(ends) == 1
        for fault, next_s in zip(self.faults, [*ends[1:], ends[-1] + lease_s], strict=True):
            is_short = fault.kind == "crash" and fault.value <= SHORT_SHARE * lease_s
            is_alone = next_s >= fault.at_s + lease_s and not fault.reports
            if not is_short or not (is_one or is_alone):
                return False
        shares = {self.settings["min_nodes"], self.settings["max_nodes"], self.nodes}
        return self.register == "here" and len(shares) == 1

    @property
    def _is_gentle_for_leaders(self) -> bool:
        """The register is away for less than a leader may act by promises (of another node), or an
        older record is put back there; the leader is stopped or cut off for a moment; or an agent
        that is not needed boasts."""
        lease_s: float = self.settings["lease_s"]
        nodes: int = self.settings["max_nodes"]
        is_broken = self.program.broken_s > 0
        if self.settings["min_nodes"] != nodes or nodes > self.nodes or is_broken:
            return False
        if [fault.kind for fault in self.faults] == ["start", "boast"]:
            first, second = self.faults
            return first.node == second.node and first.node not in self.names
        if len(self.faults) != 1:
            return False
        [fault] = self.faults
        if (fault.kind, fault.node) == ("away", ""):
            away_s = 0.9 * (HOLD_S + CONSENT_LEASES * lease_s) - AWAY_SLACK_S
            return fault.value <= away_s and nodes > 1
        if fault.kind in PUT_BACK:
            return True
        is_moment = fault.value <= min(MOMENT_S, 2 * SHORT_SHARE * lease_s)
        return (fault.kind, fault.node) in BRIEFLY and is_moment

    @property
    def longest_grace_s(self) -> float:
        """The longest time that the workers of a node may take to stop."""
        return max((STOP_GRACE_S, *self.graces.values()))

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
            stop=StopConfig(restart_grace_s=STOP_GRACE_S, shutdown_grace_s=6.0),
        )

    def __str__(self) -> str:
        head = {"seed": self.seed, "nodes": self.nodes, "workers": self.workers}
        more: dict[str, Any] = {"embedded": self.embedded}
        more |= {"register": self.register} if self.register else {}
        more |= {"peace_s": self.peace_s}
        more |= {"wall_step_ms": self.wall_step_ms} if self.wall_step_ms != 1000 else {}
        lines = [_pairs(head | more), "settings " + _pairs(self.settings)]
        lines += ["program " + _pairs(msgspec.to_builtins(self.program))]
        lines += ["rates " + _pairs(self.rates)] if self.rates else []
        lines += ["graces " + _pairs(self.graces)] if self.graces else []
        return "\n".join([*lines, *map(str, self.faults)])


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in values.items())


def _parsed(words: list[str]) -> dict[str, Any]:
    pairs = (word.split("=", 1) for word in words)
    return {key: msgspec.json.decode(value) for key, value in pairs}


def read_plan(path: Path) -> Plan:
    """Raises ValueError for a line that is no part of a plan, and for a plan that can't be run."""
    head: dict[str, Any] = {}
    faults: list[Fault] = []
    for line in path.read_text().splitlines():
        try:
            _read_line(line.split(), head, faults)
        except (ValueError, msgspec.MsgspecError):
            raise ValueError(f"not a line of a plan: {line!r}") from None
    try:
        plan = msgspec.convert(head | {"faults": tuple(faults)}, Plan, from_attributes=True)
        plan.config()
    except (TypeError, msgspec.MsgspecError, UsageError) as error:
        raise ValueError(f"not a whole plan: {error}") from None
    return plan


def _read_line(words: list[str], head: dict[str, Any], faults: list[Fault]) -> None:
    match words:
        case []:
            pass
        case [comment, *_] if comment.startswith("#"):
            pass
        case ["at", at_s, kind, *rest]:
            faults.append(_fault(at_s, kind, rest))
        case [("settings" | "program" | "rates" | "graces") as name, *rest]:
            head[name] = _parsed(rest)
        case _:
            head |= _parsed(words)


def _fault(when: str, kind: str, words: list[str]) -> Fault:
    moment, _, reports = when.partition("+")
    at_s, _, state = moment.partition("@")
    node = words.pop(0) if words and not is_number(words[0]) else ""
    value = float(words.pop(0)) if words else 0.0
    other = words.pop(0) if words else ""
    return Fault(float(at_s), kind, node, value, other, int(reports or 0), state)
