"""A leader that alone has lost its register hands the job over (section L2 of the design)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.harness.narrowed import known
from tests.simulator import Simulation, read_plan

from rallypoint.core import messages as m
from rallypoint.core.model import Epoch, Promise, SharedSettings, Stamp
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.consent import OFFERED_S, Promises, Speaker
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import LONELY_S, LONELY_SHARE, Lead, Watch
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.errors import RendezvousConnectionError
from rallypoint.register.directory.backend import DirectoryBackend

PLAN = Path(__file__).parent.parent / "simulated" / "the-directory-is-away-for-the-leader-alone.txt"
JOB = JobRecord(SharedSettings("job", 1, 8), 1, 3, True, True, 4, leader_rank=0)
RECORD = LeadRecord(1, Epoch(3, 7), Leader((), Process("boot", 1, 10), has_workers=True), 0, JOB)
LATE_S = LONELY_SHARE * HOLD_S
THERE = ("10.0.0.2:29400",)
EPOCH = RECORD.epoch.as_int()
HEIR = Speaker(1, (Stamp(1, 3), 1, 0))


def beat(offers: tuple[str, ...]) -> m.Heartbeat:
    return m.Heartbeat(1, Promise(0, Stamp(1, 3), 1, offers=offers))


def test_L2_a_leader_hands_over_to_an_heir_that_has_offered_for_a_while_to_lead() -> None:
    lead = Lead(RECORD, 0.0)
    lead.heard(beat(THERE), LATE_S, HEIR)
    assert not lead.hand_over(LATE_S + LONELY_S - 0.1)
    assert lead.is_sure(LATE_S)
    lead.heard(beat(THERE), LATE_S + LONELY_S, HEIR)
    assert lead.hand_over(LATE_S + LONELY_S)
    assert lead.successor == THERE
    assert not lead.is_sure(0.0), "it no longer leads"


def test_L2_a_leader_leads_on_if_who_has_offered_takes_that_back_or_is_silent() -> None:
    """The register may be away for all by now, or that heir is gone."""
    lead = Lead(RECORD, 0.0)
    lead.heard(beat(THERE), LATE_S, HEIR)
    lead.heard(beat(()), LATE_S + LONELY_S - 0.1, HEIR)
    assert not lead.hand_over(LATE_S + LONELY_S)
    lead.heard(beat(THERE), LATE_S + LONELY_S, HEIR)
    assert not lead.hand_over(LATE_S + LONELY_S + 30.0)


def test_L2_a_leader_whose_register_is_away_for_all_leads_on() -> None:
    lead = Lead(RECORD, 0.0)
    lead.heard(beat(()), LATE_S, HEIR)
    assert not lead.hand_over(1000.0)


def test_L2_a_leader_whose_register_has_stalled_and_is_back_leads_on() -> None:
    lead = Lead(RECORD, 0.0)
    lead.heard(beat(THERE), LATE_S, HEIR)
    lead.confirmed(lead.next(JOB), LATE_S + 0.5)
    assert not lead.hand_over(1000.0)


def test_L2_who_is_to_follow_claims_at_once_and_nobody_else_does() -> None:
    named, other = Promises(15.0), Promises(15.0)
    for promises in (named, other):
        promises.assigned(Stamp(1, 3), 1)
        promises.answered(1, 100.0)
    named.offer(THERE, 100.0)
    promise = known(named.next(100.0 + OFFERED_S, EPOCH))
    assert promise.offers == THERE
    for promises in (named, other):
        promises.handed_over(RECORD.epoch.as_int(), THERE)
    waits = [
        Watch().claims_in_s(
            RECORD,
            101.0,
            is_gone=False,
            claimant=Claimant(
                Stamp(1, 3), 1, promised_until=each.until, freed_epoch=each.freed_epoch
            ),
        )
        for each in (named, other)
    ]
    assert waits[0] == 0
    assert waits[1] > HOLD_S


def test_L2_an_offer_that_is_old_is_none() -> None:
    promises = Promises(15.0)
    promises.assigned(Stamp(1, 3), 1)
    promises.offer(THERE, 100.0)
    promise = known(promises.next(100.1 + OFFERED_S, EPOCH))
    assert promise.offers == ()


def test_L2_the_directory_is_away_for_the_leader_alone_and_no_worker_notices() -> None:
    """Its own node finds the next leader without the directory."""
    outline = Simulation(read_plan(PLAN)).run()
    assert outline.failure is None
    said = "\n".join(outline.transcript)
    assert "it can't write its record, and another node can" in said
    assert "took over round 0 with 3 of 3 nodes" in said
    assert "round 1" not in said
    assert "lease expired" not in said


def test_L2_a_directory_tells_whether_it_could_be_written(tmp_path: Path) -> None:
    register = DirectoryBackend(str(tmp_path), "job")
    with pytest.raises(RendezvousConnectionError):
        register.try_writing()  # As in a mount point where nothing is mounted.
    assert list(tmp_path.iterdir()) == []
    assert register.set_state(b"record") is not None
    there = list(tmp_path.iterdir())
    register.try_writing()
    assert list(tmp_path.iterdir()) == there
    shutil.rmtree(tmp_path)
    with pytest.raises(RendezvousConnectionError):
        register.try_writing()
