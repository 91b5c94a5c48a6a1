"""Whole jobs in virtual time, whatever goes wrong: `tests.simulator`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from tests.harness.limits import patience
from tests.simulator import Outline, Plan, Simulation, draw, machines, read_plan, shrunk
from tests.simulator.__main__ import main
from tests.simulator.drawings.pairs import FAULTS, pair_plan
from tests.simulator.loop import MachineClock, Schedule, new_loop, start
from tests.simulator.network import Network
from tests.simulator.states import STATES
from tests.simulator.training import RoundOfSteps, Training
from tools.planted_bug_list import BUGS
from tools.planted_bugs import CORE, SOURCE

from rallypoint.core.model import Stamp
from rallypoint.core.watch import goodput
from rallypoint.core.watch.goodput import Goodput
from rallypoint.core.watch.node_progress import NodeProgress

PLANS = sorted((Path(__file__).parent.parent / "simulated").glob("*.txt"))
SEEDS = range(1, 301)


def hold(plan: Plan) -> Outline:
    """No rule breaks; otherwise the smallest form of the plan is shown with its transcript."""
    outline = Simulation(plan).run()
    failure = outline.failure
    if failure is None:
        return outline
    small = shrunk(plan, failure.rule)
    transcript = "\n".join(Simulation(small).run().transcript)
    pytest.fail(f"seed {plan.seed}: {failure.text}\n\n{small}\n\n{transcript}", pytrace=False)


def test_every_rule_holds_whatever_goes_wrong() -> None:
    for seed in SEEDS:
        hold(draw(seed))


@pytest.mark.fault
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.quick if not n else ())
        for n, fault in enumerate(FAULTS)
    ],
)
def test_what_befalls_a_leader_or_its_register_does_so_in_every_state_of_the_job(
    fault: str,
) -> None:
    for state in STATES:
        assert any(befalls(fault, state, number) for number in range(1, 4)), state


def befalls(fault: str, state: str, number: int) -> bool:
    """Whether this happened while the job was in that state, and not just before or after."""
    plan = pair_plan(draw(number), fault, state, Random(f"{fault} {state} {number}"))
    moments = hold(plan).moments
    aimed = [each for each in plan.faults if each.state]
    return [each for each in moments if each[0].state] == [(each, state) for each in aimed]


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_that_once_broke_a_rule_holds(path: Path) -> None:
    hold(read_plan(path))


def test_L2_a_leader_that_is_cut_off_twice_in_one_round_ends_no_job() -> None:
    """Both times another node can lead, and the workers of the others go on to the end."""
    (path,) = (each for each in PLANS if each.stem == "a-leader-is-cut-off-twice-in-one-round")
    transcript = hold(read_plan(path)).transcript
    assert sum("no longer leads: it does not hear 2 of 3" in line for line in transcript) == 2
    assert any("job succeeded" in line for line in transcript)


def test_L2_a_job_that_waits_for_a_lost_machine_ends_by_its_join_timeout() -> None:
    """Though the node that waits alone lets another one lead meanwhile."""
    path = next(each for each in PLANS if "two-nodes-that-need-both" in each.name)
    assert hold(read_plan(path)).verdicts == ("timed out",)


def test_a_seed_is_the_same_job_in_every_process() -> None:
    program = (
        "from tests.simulator import *\n"
        "for plan in map(draw, range(1, 9)): print(plan, *Simulation(plan).run().transcript)"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
            timeout=patience(60.0),
        ).stdout
        for number in ("1", "2")
    ]
    assert told[0] == told[1]
    assert "starts in round 0" in told[0]


def test_a_rule_that_breaks_is_shown_in_its_smallest_form(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machines, "next_look_ns", lambda *_: None)
    seed = next(s for s in SEEDS if Simulation(draw(s)).run().failure is not None)
    assert main(["--seeds", f"{seed}-{seed}"]) == 1
    shown = capsys.readouterr().out
    assert f"seed {seed} broke a rule: fence: workers of" in shown
    assert "its smallest form (1 faults" in shown
    assert " pause n" in shown or " hold " in shown
    assert "starts in round 0" in shown


def test_an_account_that_loses_a_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = goodput.told

    def half(account: Goodput, node_id: str, progress: NodeProgress, at: float) -> None:
        if progress.furthest % 2:
            told(account, node_id, progress, at)

    monkeypatch.setattr(goodput, "told", half)
    failures = (Simulation(draw(seed)).run().failure for seed in SEEDS)
    assert next(found.rule for found in failures if found is not None) == "goodput"


def test_workers_do_a_step_so_often_and_stall() -> None:
    steady = RoundOfSteps(20, startup_s=3.0, step_s=2.0)
    assert [steady.at(ran_s) for ran_s in (2.9, 3.0, 4.9, 7.5)] == [
        *(None, (20, 3.0), (20, 3.0), (22, 7.0))
    ]
    stalls = RoundOfSteps(20, startup_s=3.0, step_s=2.0, stalls_after=1, stall_s=10.0)
    assert [stalls.at(ran_s) for ran_s in (5.0, 16.9, 17.0, 19.0)] == [
        *((21, 5.0), (21, 5.0), (22, 17.0), (23, 19.0))
    ]


def test_a_round_begins_behind_the_last_checkpoint_and_does_the_rest_again() -> None:
    training = Training(1, 1.0, is_prompt=True)
    first = training.begin(Stamp(1, 0), 0.0)
    reached = training.furthest(40.0)
    training.end(first, 40.0)
    assert training.done(40.0) == reached + 1
    again = training.begin(Stamp(1, 1), 50.0)
    assert 0 < again.steps.first == reached // 10 * 10 <= reached
    training.end(again, 55.0)
    assert training.furthest(55.0) == reached
    assert training.done(55.0) > reached + 1
    assert training.ran_s(60.0) == 45.0


def test_seeds_that_hold_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1-3", "--nodes", "2"]) == 0
    assert "3 seeds" in capsys.readouterr().out


def test_a_plan_is_text(tmp_path: Path) -> None:
    for seed in range(1, 51):
        (tmp_path / "plan.txt").write_text(f"# a comment\n{draw(seed)}\n")
        assert read_plan(tmp_path / "plan.txt") == draw(seed)


def test_a_line_that_is_no_part_of_a_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_text("seed=1 nodes=2\nafterwards everything was well\n")
    with pytest.raises(ValueError, match="not a line of a plan: 'afterwards everything was well'"):
        read_plan(tmp_path / "plan.txt")


@pytest.mark.parametrize("length", [10, 60, 300])
def test_a_plan_that_was_cut_off_is_told_in_one_line(
    length: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.txt"
    path.write_text(str(draw(3))[:length])
    with pytest.raises(SystemExit, match="2"):
        main(["--plan", str(path)])
    assert f"--plan {path}: not a" in capsys.readouterr().err.splitlines()[-1]


def test_the_place_of_every_bug_that_can_be_planted_is_in_the_source() -> None:
    for bug in BUGS:
        assert (SOURCE / CORE / bug.module).read_text().count(bug.old) == 1, bug.name


def test_each_rule_of_leading_has_a_planted_bug_and_the_page_lists_all() -> None:
    page = (SOURCE.parent / "docs/design/simulator.md").read_text()
    assert {bug.rule for bug in BUGS} >= {f"L{number}" for number in range(10)}
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 10 + 15
    assert [bug.name for bug in BUGS if f"| {bug.rule} | {bug.name} |" not in page] == []


class Process:
    """One that counts its turns."""

    def __init__(self, schedule: Schedule, rate: float = 1.0) -> None:
        self.loop = new_loop(
            schedule, MachineClock(schedule, rate, 50.0), Network(schedule, 1), "a", self.crashed
        )
        self.times: list[float] = []
        self.errors: list[BaseException] = []
        self._schedule = schedule
        start(self.loop, self._run)

    def crashed(self, host: str, error: BaseException) -> None:
        self.errors.append(error)

    async def _run(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(1.0)
            self.times.append(round(self._schedule.now_s, 6))


def steps_until(schedule: Schedule, end_s: float) -> None:
    schedule.at(end_s, lambda: None)
    while schedule.now_s < end_s:
        schedule.step()


def test_a_process_reads_the_clock_of_its_machine() -> None:
    schedule = Schedule()
    fast = Process(schedule, rate=1.25)
    steps_until(schedule, 2.5)
    assert fast.times == [0.8, 1.6, 2.4]
    assert fast.loop.time() == 50.0 + 1.25 * 2.5


def test_nothing_of_a_stopped_process_runs_and_nothing_of_a_killed_one_ever_does() -> None:
    schedule = Schedule()
    process = Process(schedule)
    steps_until(schedule, 1.5)
    process.loop.stop_process()
    steps_until(schedule, 4.25)
    assert process.times == [1.0]
    process.loop.continue_process()
    steps_until(schedule, 5.5)
    assert process.times == [1.0, 4.25, 5.25]
    process.loop.kill_process()
    steps_until(schedule, 9.0)
    process.loop.discard()
    assert process.times == [1.0, 4.25, 5.25]
    assert process.errors == []
