"""Transcripts of whole jobs: commands, each followed by all that every node is then told.

A transcript is text. A block is one or more commands, a line `----`, and the trace that they cause
up to the next empty line; lines that begin with `#` are comments:

    job nodes=2 max_restarts=1
    join a workers=2
    join b
    ----
    * node a joined
    * node b joined
    ...

Time is virtual and moves only with `tick`. Nodes obey at once: one that is told to stop has stopped
and joins again in the same instant, unless it is slow. The commands:

    job nodes=MIN[:MAX] [SETTING=VALUE ...]     the job's settings (`SharedSettings`); comes first
    join NODE [workers=N] [role=R] [topology=T] [rank=K] [grace=S] [SETTING=VALUE ...]
                                                a fresh agent; SETTING=VALUE where it disagrees
    slow NODE                                   from now on it does not come back by itself
    cut NODE OTHER | mend NODE OTHER            NODE can't reach the round store of OTHER; or can
    unready NODE                                from now on it says nothing before a start
    back NODE                                   the same agent joins again
    fail NODE [rank=LOCAL] [code=N | signal=SIGNAME] [age=S] [step=N]
                                                step: the largest that its workers have reported
    helper-dies NODE                            its round store was killed
    finishing NODE | succeed NODE               its first worker, or all of them, ended well
    lose NODE [silent=S]                        it went away, last heard S seconds ago
    drain NODE [notice=S] [hosts=1]             it was told to go; its workers may take S seconds
                                                for a checkpoint; the coordinator lives there
    listens NODE                                its workers know of checkpoints that are asked for
    saved NODE [failed=1]                       they have saved it; or one has died instead
    hangs NODE                                  a worker there has made no progress for too long
    behind NODE [rank=LOCAL step=N silent=S] [furthest=N]
                                                what its workers do, when all nodes are asked: one
                                                is behind, unless it was heard lately
    leave NODE | cancel NODE                    it reports that it leaves; Ctrl-C there
    tick S                                      so many seconds pass
    status                                      what a person would be shown

A transcript whose first command is `coordinator` has those of `coordinator_scenario.py` instead,
one that begins with `question` those of `collection_scenario.py`, one with `serve` those of
`hosted_lives.py`, one with `takeover` those of `takeover_scenario.py`, one with `launch` those of
`launch_scenario.py`.

In a trace `*` is what a person sees, `NODE <-` what a node is told, `NODE ->` what it answers, and
`@S` a timer that ran out. `python -m tests.harness.scenario DIR` checks all `*.txt` there and
exits 1 when one differs; with `--rewrite` it writes what really happens, to be read in a diff.
"""

from __future__ import annotations

import argparse
import difflib
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

import msgspec

from rallypoint.core import job
from rallypoint.core import job_state as j
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.events import NodeJoined, RefuseNode, TimerEnded, TimerKind
from rallypoint.core.hang import Behind
from rallypoint.core.model import Assignment, Candidate, NodeRef, SharedSettings, Stamp
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.testing.clock import VirtualTimers

Options = dict[str, str]


class Scenario:
    """One job and its nodes in virtual time. `run` executes one command and returns its trace."""

    def __init__(self) -> None:
        self._job: job.JobState | None = None
        self._timers = VirtualTimers()
        self._lives: dict[str, int] = {}
        self._seqs: dict[NodeRef, int] = {}
        self._candidates: dict[NodeRef, Candidate] = {}
        self._assigned: dict[str, Assignment] = {}
        self._slow: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._unready: set[str] = set()
        self._listens: set[str] = set()
        self._leaving: set[NodeRef] = set()
        self._inquiry = 0
        self._asked: dict[str, m.CheckpointWanted] = {}
        self._answers: deque[tuple[str, j.JobEvent]] = deque()
        self._trace: list[str] = []

    def run(self, command: str) -> list[str]:
        """Execute one command.

        Raises ValueError for a command that is unknown or malformed.
        """
        name, *words = command.split()
        options, names = options_and_names(words)
        self._trace = []
        match name, names:
            case "job", []:
                self._job = job.new_job(settings_from(options))
            case "status", []:
                self._trace.append(_status(self._the_job))
            case "tick", [seconds]:
                self._tick(float(seconds))
            case "slow", [node]:
                self._slow.add(node)
            case "cut", [node, other]:
                self._cut.add((node, other))
            case "mend", [node, other]:
                self._cut.discard((node, other))
            case "unready", [node]:
                self._unready.add(node)
            case "listens", [node]:
                self._listens.add(node)
            case "join", [node]:
                self._join(node, options)
            case _, [node] if name in _REPORTS:
                self._apply(self._report(name, node, options))
            case _:
                raise ValueError(f"not a command: {command!r}")
        return self._trace

    @property
    def _the_job(self) -> job.JobState:
        if self._job is None:
            raise ValueError("the first command must be `job nodes=MIN[:MAX]`")
        return self._job

    def _ref(self, node: str) -> NodeRef:
        if node not in self._lives:
            raise ValueError(f"node {node!r} has never joined")
        return NodeRef(node, f"{node}.{self._lives[node]}")

    def _join(self, node: str, options: Options) -> None:
        self._lives[node] = self._lives.get(node, 0) + 1
        ref = self._ref(node)
        self._candidates[ref] = Candidate(
            workers=int(options.pop("workers", "1")),
            role=options.pop("role", "worker"),
            address=node,
            store_port=29500,
            topology=options.pop("topology", ""),
            node_rank=int(options.pop("rank", "-1")),
            stop_grace_s=float(options.pop("grace", "5")),
        )
        self._apply(self._joined(ref, _changed(self._the_job.round.settings, options)))

    def _joined(self, ref: NodeRef, settings: SharedSettings | None = None) -> NodeJoined:
        self._seqs[ref] = self._seqs.get(ref, 0) + 1
        settings = settings or self._the_job.round.settings
        return NodeJoined(ref, self._seqs[ref], self._candidates[ref], settings)

    def _report(self, name: str, node: str, options: Options) -> j.JobEvent:
        ref, at = self._ref(node), self._timers.now_s
        unknown = sorted(options.keys() - set(_REPORTS[name]))
        if unknown:
            raise ValueError(f"`{name}` has no option {unknown[0]!r}")
        if name == "back":
            return self._joined(ref)
        if name == "lose":
            silent_s = float(options.get("silent", "0"))
            why = f"silent for {silent_s:g} s" if silent_s else "its session ended"
            return j.SessionLost(ref, why, at - silent_s)
        return m.FromNode(ref, self._message(name, ref, options))

    def _message(self, name: str, ref: NodeRef, options: Options) -> m.Report:
        assigned = self._assigned.get(ref.node_id)
        stamp = job.stamp(self._the_job, assigned.round if assigned else 0)
        match name:
            case "fail":
                base = assigned.base_rank if assigned else 0
                role = self._candidates[ref].role
                furthest = int(options.get("step", "-1"))
                return m.Failed(stamp, (_failure(options, base, role),), furthest)
            case "helper-dies":
                text = f"the process of the round store was killed by SIGKILL on node {ref}"
                return m.HelperDied(stamp, text)
            case "finishing":
                return m.Finishing(stamp)
            case "succeed":
                return m.Succeeded(stamp)
            case "drain":
                self._leaving.add(ref)
                notice_s, hosts = float(options.get("notice", "0")), "hosts" in options
                return m.Drain("SIGTERM", int(signal.SIGTERM), hosts, notice_s)
            case "hangs":
                return m.HangSuspected(stamp)
            case "behind":
                step, silent_s = int(options.get("step", "-1")), float(options.get("silent", "0"))
                failure = _failure(options, assigned.base_rank if assigned else 0, "worker")
                failure = msgspec.structs.replace(failure, code=None)
                behind = Behind(failure, step, silent_s) if "silent" in options else None
                furthest = int(options.get("furthest", step))
                return m.StacksCollected(stamp, self._inquiry, behind, furthest)
            case "saved":
                asked = self._asked[ref.node_id]
                failed = "failed" in options
                return m.CheckpointAnswered(asked.stamp, asked.number, True, failed)
            case "cancel":
                return m.Cancel("SIGINT", int(signal.SIGINT))
            case _:
                return m.Leave()

    def _tick(self, seconds: float) -> None:
        end_s = self._timers.now_s + seconds
        while (timer := self._timers.next_until(end_s)) is not None:
            whose = f" of {timer.id}" if timer.id in self._lives else ""
            if timer.kind is not TimerKind.PROBATION:  # Nothing is decided then.
                at = f"@{self._timers.now_s:g}"
                self._trace.append(f"{at} timer ended: {timer.kind.value}{whose}")
            self._apply(TimerEnded(timer))

    def _apply(self, event: j.JobEvent) -> None:
        """One event and all that follows from it, in order."""
        self._answers.append(("", event))
        while self._answers:
            text, answer = self._answers.popleft()
            if text:
                self._trace.append(text)
            for effect in job.step(self._the_job, answer, self._timers.now_s):
                self._perform(effect)
            self._timers.keep(job.timers_wanted(self._the_job))

    def _perform(self, effect: j.JobEffect) -> None:
        match effect:
            case Record(_, text):
                self._trace.append(f"* {text}")
            case m.ToNode(ref, message):
                self._ordered(ref, message)
            case RefuseNode(ref, differences):
                told = [
                    f"{name} is {job} in the job, {node} here" for name, job, node in differences
                ]
                self._tell(ref, f"refused: {'; '.join(told)}")
            case _:
                assert_never(effect)

    def _ordered(self, ref: NodeRef, order: m.Order) -> None:
        match order:
            case m.Assigned(stamp, assignment):
                self._assigned[ref.node_id] = assignment
                self._tell(ref, assignment_text(assignment, self._candidates[ref].workers))
                if assignment.enrol and ref.node_id not in self._unready:
                    self._answers.append(self._enrol(ref, stamp, assignment))
            case m.StartNow(stamp):
                self._tell(ref, f"start the workers of round {stamp.round}")
            case m.StopNow(stamp, reason):
                self._tell(ref, f"stop the workers of round {stamp.round}: {reason.text}")
                if ref.node_id not in self._slow and ref not in self._leaving:
                    self._answers.append((f"{ref} -> stopped, joins again", self._joined(ref)))
            case m.CheckpointWanted(stamp, number, kind, reason, left_s):
                hurry = "" if left_s is None else f", {left_s:g} s left"
                self._tell(ref, f"save a checkpoint ({kind.value}): {reason}{hurry}")
                self._asked[ref.node_id] = order
                if ref.node_id not in self._listens:
                    answer = m.CheckpointAnswered(stamp, number, listens=False)
                    self._answers.append((f"{ref} -> nobody listens", m.FromNode(ref, answer)))
            case m.CollectStacks(_, number):
                self._tell(ref, "tell what the workers do")
                self._inquiry = number
            case m.CheckpointNotWanted():
                self._tell(ref, "no checkpoint is wanted any more")
            case m.LeaveNow():
                self._tell(ref, "leave")
            case m.Ended(_, verdict):
                self._tell(ref, f"the job {verdict.outcome.value}: {verdict.text}")
            case m.Expelled(_, why, final):
                self._tell(ref, f"expelled{' for good' if final else ''}: {why}")
                if not final and ref.node_id not in self._slow:
                    self._answers.append((f"{ref} -> joins again", self._joined(ref)))
            case m.DrainWanted(_, why):
                self._tell(ref, f"drain: {why}")
            case m.Prove(stamp, number):
                self._tell(ref, "show that workers can be started")
                self._answers.append((f"{ref} -> fit", m.FromNode(ref, m.Proved(stamp, number))))
            case _:
                assert_never(order)

    def _enrol(self, ref: NodeRef, stamp: Stamp, assignment: Assignment) -> tuple[str, j.JobEvent]:
        host = assignment.master_addr
        if (ref.node_id, host) in self._cut:
            failed = m.NotEnrolled(stamp, f"no answer from {host}:29500")
            text = f"{ref} -> no answer from the round store of {host}"
            return text, m.FromNode(ref, failed)
        return f"{ref} -> enrolled", m.FromNode(ref, m.Enrolled(stamp))

    def _tell(self, ref: NodeRef, text: str) -> None:
        older = "" if ref == self._ref(ref.node_id) else " (the older agent)"
        self._trace.append(f"{ref}{older} <- {text}")


_REPORTS: Mapping[str, tuple[str, ...]] = {
    "back": (),
    "fail": ("rank", "code", "signal", "age", "step"),
    "helper-dies": (),
    "finishing": (),
    "succeed": (),
    "lose": ("silent",),
    "drain": ("notice", "hosts"),
    "saved": ("failed",),
    "hangs": (),
    "behind": ("rank", "step", "silent", "furthest"),
    "leave": (),
    "cancel": (),
}
"""What a node can report, and with which options."""


def render(text: str) -> str:
    """The same transcript with the traces that its commands really cause.

    Raises ValueError that names the line of a bad command.
    """
    # These import this module.
    from tests.harness.collection_scenario import CollectionScenario
    from tests.harness.coordinator_scenario import CoordinatorScenario
    from tests.harness.hosted_lives import LivesHost
    from tests.harness.launch_scenario import LaunchScenario
    from tests.harness.takeover_scenario import TakeoverScenario

    first = next((line for line in text.splitlines() if line and line[0] != "#"), "")
    run = Scenario().run
    if first.startswith("coordinator "):
        run = CoordinatorScenario().run
    elif first.startswith("question "):
        run = CollectionScenario().run
    elif first.split(" ")[0] == "serve":
        run = LivesHost().run
    elif first.startswith("takeover "):
        run = TakeoverScenario().run
    elif first.startswith("launch "):
        run = LaunchScenario().run
    out: list[str] = []
    commands: list[tuple[int, str]] = []
    in_trace = False

    def execute() -> None:
        out.append("----")
        for number, command in commands:
            try:
                out.extend(run(command))
            except (ValueError, KeyError) as error:
                raise ValueError(f"line {number}: {error}") from error
        commands.clear()

    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line == "----" and commands:
            execute()
            in_trace = True
        elif not line.strip():
            if commands:
                execute()
            in_trace = False
            out.append("")
        elif not in_trace:
            out.append(line)
            if not line.startswith("#"):
                commands.append((number, line))
    return "\n".join(out).rstrip("\n") + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Check, or rewrite, every transcript of a folder; 1 when one differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.scenario")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rewrite", action="store_true", help="write what really happens")
    options = parser.parse_args(arguments)
    differing = 0
    for path in sorted(options.folder.glob("*.txt")):
        expected = path.read_text()
        actual = render(expected)
        if actual == expected:
            continue
        differing += 1
        lines = difflib.unified_diff(
            expected.splitlines(), actual.splitlines(), f"{path}", "what happens", lineterm=""
        )
        print(*lines, sep="\n")
        if options.rewrite:
            path.write_text(actual)
    return 1 if differing and not options.rewrite else 0


def options_and_names(words: list[str]) -> tuple[Options, list[str]]:
    """The words KEY=VALUE of a command, and the others."""
    options = dict(word.split("=", 1) for word in words if "=" in word)
    return options, [word for word in words if "=" not in word]


def settings_from(options: Options) -> SharedSettings:
    """Of a job, as `nodes=MIN[:MAX]` and by the names of the fields."""
    low, _, high = options.pop("nodes").partition(":")
    return _changed(SharedSettings("job", int(low), int(high or low)), options)


def _changed(settings: SharedSettings, options: Options) -> SharedSettings:
    """The settings with some values replaced, each read as its field's type."""
    unknown = sorted(options.keys() - set(settings.__struct_fields__))
    if unknown:
        raise ValueError(f"no such setting: {unknown[0]!r}")
    parse: dict[type, Callable[[str], object]] = {bool: lambda text: text == "true"}
    changes = {}
    for key, text in options.items():
        kind = type(getattr(settings, key))
        if kind is tuple:
            changes[key] = tuple(int(code) for code in text.split(","))
        else:
            changes[key] = parse.get(kind, kind)(text)
    return msgspec.structs.replace(settings, **changes)


def _failure(options: Options, base_rank: int, role: str) -> WorkerExit:
    local_rank = int(options.get("rank", "0"))
    killed_by = signal.Signals[options["signal"]].value if "signal" in options else None
    return WorkerExit(
        local_rank=local_rank,
        rank=base_rank + local_rank,
        role=role,
        pid=1000 + local_rank,
        code=int(options.get("code", "1")) if killed_by is None else None,
        signal=killed_by,
        age_s=float(options.get("age", "0")),
    )


def assignment_text(part: Assignment, workers: int) -> str:
    """A node's part of a round, in one line."""
    last = part.base_rank + workers - 1
    ranks = f"ranks {part.base_rank}-{last}" if workers > 1 else f"rank {last}"
    return (
        f"round {part.round}: node {part.group_rank} of {part.group_world_size}, "
        f"{ranks} of {part.world_size}, role rank {part.base_role_rank} of "
        f"{part.role_world_size}, store {part.master_addr}:{part.master_port}, "
        f"restarts {part.restart_count}"
    )


def _status(state: job.JobState) -> str:
    status = job.status(state)
    return (
        f"{status.phase}, round {status.round}: {status.world_nodes} nodes with "
        f"{status.world_workers} workers; {status.joined} joined, {status.stopping} stopping, "
        f"{status.waiting} waiting, {status.standby} standing by; "
        f"{status.restarts_used} restarts used"
    )


if __name__ == "__main__":
    sys.exit(main())
