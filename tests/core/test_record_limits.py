"""What a value may be in a job's record: what no leader writes is refused in one line, and is not
acted on."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.narrowed import known, of_kind
from tests.harness.newest_record import JOB, NEWEST, SETTINGS, told

from rallypoint.core.fitness_state import BadMachine, BadRoute, Hold, Why
from rallypoint.core.model import (
    EPOCHS_MAX,
    Cause,
    EndKind,
    EndReason,
    Epoch,
    NodeLoss,
    NodeRef,
    Outcome,
    Stamp,
    Verdict,
)
from rallypoint.core.restarts import ComparedExit, CrashLoop
from rallypoint.core.round_record import CarriedRound
from rallypoint.core.settings import MAX_NUMBER
from rallypoint.core.takeover.heirs import Claimant, rank_in
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import (
    Blamed,
    FormerLife,
    JobRecord,
    LeadRecord,
    LifeLock,
    MachinesRecord,
    Process,
    WorldNames,
)
from rallypoint.core.takeover.record_limits import ADVANCE_MAX, MAX_LIFE
from rallypoint.core.watch.carried import Carried
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import RecordError, UnfitRecordError
from rallypoint.register.record import decode, encode

VERDICT = Verdict(Outcome.FAILED, "a text", 4)
MACHINE = BadMachine("c", Why.PERSON, "a person excluded it", is_excluded=True)
CARRIED = Carried(1e9, 60.0, "stopping", "failure", (("stopping", "failure", 60.0),))
BIG = 2**62 + 1


def of_job(**fields: Any) -> LeadRecord:
    """A record in which the job has these values."""
    return replace(NEWEST, job=replace(JOB, **fields))


def of_leader(**fields: Any) -> LeadRecord:
    """A record in which the leader has these values."""
    return replace(NEWEST, leader=replace(NEWEST.leader, **fields))


def of_machine(**fields: Any) -> LeadRecord:
    """A record with one machine, which has these values."""
    return of_job(machines=MachinesRecord({"c": replace(MACHINE, **fields)}))


MAD = {
    "epoch.number": replace(NEWEST, epoch=Epoch(EPOCHS_MAX + 1, 1)),
    "epoch.nonce": replace(NEWEST, epoch=Epoch(3, 2**40)),
    "beat": replace(NEWEST, beat=BIG),
    "candidates": replace(NEWEST, candidates=(1, 2, 3, 4)),
    "leader.hold_s": of_leader(hold_s=nan),
    "leader.addresses = 100000 items": of_leader(addresses=("127.0.0.1:9",) * 100_000),
    "leader.process.pid": of_leader(process=Process("", -1, -1)),
    "leader.process.lock.place": of_leader(process=Process("", 1, 1, LifeLock(1, 2, -1))),
    "leader.versions": of_leader(versions=(-1, 1)),
    "job.settings.lease_s": of_job(settings=replace(SETTINGS, lease_s=nan)),
    "job.settings.min_nodes": of_job(settings=replace(SETTINGS, min_nodes=-5)),
    "job.incarnation": of_job(incarnation=MAX_LIFE + 1),
    "job.round": of_job(round=BIG),
    "job.nodes": of_job(nodes=2**40),
    "job.succeeded = 2 bytes": of_job(succeeded=b"\0\0"),
    "job.stopped = 1000000 bytes": of_job(stopped=bytes(1_000_000)),
    "job.judged_round": of_job(judged_round=-1),
    "job.restarts": of_job(restarts=-1),
    "job.restarts_counted": of_job(restarts_counted=(-1,)),
    "job.backoff_s": of_job(backoff_s=inf),
    "job.end_reason.age_s": of_job(end_reason=EndReason(EndKind.LOSS, "x", "a", nan)),
    "job.last_end.text": of_job(last_end=EndReason(EndKind.LOSS, "x" * 20_000)),
    "job.loss_count": of_job(loss_count=-1),
    "job.lossy_rounds": of_job(lossy_rounds=(BIG,)),
    "job.bad_routes = ": of_job(bad_routes={"a\n": BadRoute(NodeRef("a", "1"), 1)}),
    "job.bad_routes.failures": of_job(bad_routes={"a": BadRoute(NodeRef("a", "1"), -1)}),
    "job.passed_over": of_job(passed_over=("a" * 300,)),
    "job.largest_world": of_job(largest_world=10**6),
    "job.verdict.cause.loss.last_heard_at": of_job(
        verdict=replace(VERDICT, cause=Cause("a", 1, loss=NodeLoss("a", nan, "x")))
    ),
    "job.former.verdict.round": of_job(former=FormerLife(3, replace(VERDICT, round=-2))),
    "job.former.earlier": of_job(former=FormerLife(3, VERDICT, (-1,))),
    "job.leader_rank = 3 (needs -1 to 2)": of_job(leader_rank=3),
    "job.leader_rank = -2": of_job(leader_rank=-2),
    "job.leader_node": of_job(leader_node="a\x1b[2J"),
    "job.stepped_down": of_job(stepped_down=-1),
    "job.blamed.failure.signal": of_job(blamed=Blamed("a", WorkerExit(None, 10**6))),
    "job.crash_loop.count": of_job(crash_loop=CrashLoop(-1)),
    "job.crash_loop.ending.line": of_job(
        crash_loop=CrashLoop(1, 1, ComparedExit("x", "x" * 10**6))
    ),
    "job.furthest_step": of_job(furthest_step=-2),
    "job.carried.age_s": of_job(carried=replace(CARRIED, age_s=nan)),
    "job.carried.parts": of_job(carried=replace(CARRIED, parts=(("a", "b", inf),))),
    "job.carried.newest.formed": of_job(
        carried=replace(CARRIED, newest=CarriedRound(1, 1, 1, 1e300))
    ),
    "job.machines.holds": of_job(machines=MachinesRecord(holds=-1)),
    "job.machines.trial": of_job(machines=MachinesRecord(trial=frozenset({"\0"}))),
    "job.machines.lossy_machines": of_job(machines=MachinesRecord(lossy_machines={-1: "c"})),
    "job.machines.machines.step": of_machine(step=-2),
    "job.machines.machines.hold.until": of_machine(hold=Hold(1, 0.0, 1e9)),
    "job.machines.machines.excluded_since": of_machine(excluded_since=nan),
    "job.names.rests = 2 items (needs 0 or 3 items)": of_job(names=WorldNames("n", ("1", "2"))),
    "job.names = 3000 characters": of_job(names=WorldNames("n" * 2997, ("1", "2", "3"))),
    "job.left": of_job(left=("a",) * 9),
    "job.earlier": of_job(earlier=tuple(range(9))),
}


@pytest.mark.parametrize("field", MAD)
def test_L9_a_value_that_no_leader_writes_is_one_line_with_the_field_and_what_to_do(
    field: str,
) -> None:
    with pytest.raises(UnfitRecordError) as raised:
        decode(encode(MAD[field]))
    text = str(raised.value)
    assert text.startswith("the job's record was not written by a leader: record.")
    fault = raised.value.fault
    assert fault.startswith(f"record.{field}")
    assert " = " in fault
    assert "(needs " in fault
    assert "remove the record or use another run id" in text
    assert text.isprintable()
    assert len(text) < 500


@pytest.mark.parametrize(
    "record",
    [
        NEWEST,
        replace(NEWEST, job=None),
        of_machine(excluded_since=0.0),
        of_machine(excluded_since=-86_400.0),
        of_machine(hold=Hold(1, -10.0, 3600.0)),
        of_leader(process=Process("boot", 1, 1, LifeLock(2**64 - 1, 2**64 - 1, 3))),
        of_job(names=WorldNames("n", ("1", "2", "3")), leader_rank=2, stopped=b"\7"),
        of_job(
            carried=CARRIED, crash_loop=CrashLoop(3, 7, ComparedExit("exit code 3", "\x1b[31mred"))
        ),
        of_job(verdict=VERDICT, former=FormerLife(3, VERDICT, (1, 2))),
    ],
)
def test_L9_what_leaders_write_is_read(record: LeadRecord) -> None:
    assert decode(encode(record), "job") == record


def test_L9_a_record_of_another_job_is_none_of_this_one() -> None:
    with pytest.raises(UnfitRecordError, match=r"settings\.run_id = 'job' \(needs 'other'\)"):
        decode(encode(NEWEST), "other")


def test_L9_a_record_of_a_newer_version_is_not_taken_for_one_that_no_leader_writes() -> None:
    with pytest.raises(RecordError, match="has version 2") as raised:
        decode(encode(replace(NEWEST, schema=2, beat=-1)))
    assert not isinstance(raised.value, UnfitRecordError)


# How far counts advance


def advanced(by: int) -> dict[str, LeadRecord]:
    """Records that are so far beyond `NEWEST`, each in one count."""
    machines = MachinesRecord(holds=by, failure_count=0)
    return {
        "epoch.number": replace(NEWEST, epoch=Epoch(3 + by, 7)),
        "job.round": of_job(round=5 + by),
        "job.judged_round": of_job(judged_round=5 + by),
        "job.restarts": of_job(restarts=2 + by),
        "job.loss_count": of_job(loss_count=by),
        "job.stepped_down": of_job(stepped_down=by),
        "job.machines.holds": of_job(machines=machines),
    }


def knowing() -> Memory:
    memory = Memory()
    memory.saw(of_job(judged_round=5, machines=MachinesRecord()))
    return memory


@pytest.mark.parametrize("count", advanced(0))
def test_L9_a_count_advances_so_far_beyond_what_a_process_knows_and_no_further(count: str) -> None:
    assert knowing().fault_in(advanced(ADVANCE_MAX)[count]) == ""
    fault = knowing().fault_in(advanced(ADVANCE_MAX + 1)[count])
    assert fault.startswith(f"record.{count} = ")
    assert fault.endswith(")")


def test_L9_a_process_that_knows_nothing_takes_what_leaves_the_job_numbers() -> None:
    assert Memory().fault_in(of_job(round=MAX_NUMBER - 2 * ADVANCE_MAX)) == ""
    assert Memory().fault_in(of_job(round=MAX_NUMBER)).startswith("record.job.round = ")
    last = replace(NEWEST, epoch=Epoch(EPOCHS_MAX, 1))
    assert Memory().fault_in(last).startswith("record.epoch.number = ")


def test_L9_the_number_of_a_life_may_be_years_later() -> None:
    assert knowing().fault_in(of_job(incarnation=2 * 10**14)) == ""


def test_L9_a_position_that_is_too_far_is_ignored() -> None:
    memory = knowing()
    far = told(replace(NEWEST, epoch=Epoch(3 + ADVANCE_MAX + 1, 1)))
    assert memory.is_too_far(far)
    memory.was_told(far)
    assert memory.next_number(None) == 4
    assert not memory.is_too_far(told(replace(NEWEST, epoch=Epoch(4, 1))))


def test_L9_no_more_restarts_are_counted_than_the_budget_has() -> None:
    """Each of them is a number in the record."""
    memory = Memory()
    memory.was_told(replace(told(), restarts=2**40, counted=2**40, beat=99), SETTINGS)
    found = known(memory.restored(NEWEST))
    job = known(found.job)
    assert (job.restarts, len(job.restarts_counted)) == (2**40, SETTINGS.max_restarts)


def test_L9_a_position_of_a_world_of_another_size_forgets_what_is_recorded_of_its_nodes() -> None:
    memory = Memory()
    names = WorldNames("n", ("1", "2", "3"))
    memory.saw(of_job(names=names, succeeded=b"\7", leader_rank=2))
    memory.was_told(replace(told(), nodes=1, beat=99))
    found = known(memory.restored(None))
    assert of_kind(JobRecord, found.job).nodes == 1
    assert decode(encode(found)) == found


def test_L9_a_rank_that_the_recorded_world_does_not_have_is_none() -> None:
    assert rank_in(NEWEST, Claimant(Stamp(100, 5), 2)) == 2
    assert rank_in(NEWEST, Claimant(Stamp(100, 5), 3)) == -1
