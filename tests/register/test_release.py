"""L6: the record of a leader that is dead is marked, and nothing else is ever changed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.harness.engines import directory_at, etcd_at
from tests.harness.limits import patience
from tests.harness.narrowed import known
from tests.harness.register_contract import state_of, stored

from rallypoint.core.job_state import new_job
from rallypoint.core.model import DeadPlace, Epoch, SharedSettings, Stamp
from rallypoint.core.takeover.leading import Lead, claimed
from rallypoint.core.takeover.record import Leader, LeadRecord, Process, record_of
from rallypoint.errors import RallypointError, RendezvousConnectionError
from rallypoint.register import record as register_record
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.etcd.parameters import EtcdConfig
from rallypoint.register.release import mark_dead, release, who_hears
from rallypoint.register.version_file import register_name
from rallypoint.wire.death_notice import DeathNotice, ReleaseNotice

TOKEN = b"a token of the job"
EPOCH = Epoch(3, 7)
LEADER = Leader(("10.0.0.1:29400",), Process("boot", 1, 10))
JOB = record_of(new_job(SharedSettings("job", 1, 2), 5))
LED = LeadRecord(1, EPOCH, LEADER, 12, JOB)
LIMIT_S = 0.3


def notice_of(directory: Path) -> ReleaseNotice:
    return ReleaseNotice(directory_at(directory), "job", TOKEN, EPOCH)


def written(directory: Path, data: bytes, token: bytes | None = TOKEN) -> None:
    stored(DirectoryBackend(str(directory), "job", token), data)


def files(directory: Path) -> dict[str, bytes | None]:
    paths = directory.rglob("*")
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


def test_L6_the_record_of_a_dead_leader_is_marked_and_keeps_the_job(tmp_path: Path) -> None:
    written(tmp_path, register_record.encode(LED))
    assert release(notice_of(tmp_path), LIMIT_S)
    found = known(state_of(DirectoryBackend(str(tmp_path), "job", TOKEN)))
    record = register_record.decode(found)
    assert record == replace(LED, beat=13, is_vacant=True, is_dead=True)
    assert claimed(record, LEADER, 9).job == JOB
    before = files(tmp_path)
    assert not release(notice_of(tmp_path), LIMIT_S), "it is marked once"
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "record",
    [
        claimed(LED, LEADER, nonce=8),
        replace(LED, epoch=Epoch(3, 8)),
        Lead(LED, 0.0).next(JOB, is_vacant=True),
    ],
    ids=["a later epoch", "another nonce", "vacant"],
)
def test_L6_a_record_of_which_that_leader_is_not_the_leader_is_left_alone(
    tmp_path: Path, record: LeadRecord
) -> None:
    written(tmp_path, register_record.encode(LED))
    written(tmp_path, register_record.encode(record))
    before = files(tmp_path)
    assert not release(notice_of(tmp_path), LIMIT_S)
    assert files(tmp_path) == before


def of_another_version(directory: Path) -> None:
    written(directory, register_record.encode(replace(LED, schema=1000)))


def no_record(directory: Path) -> None:
    written(directory, b"something else")


def under_another_token(directory: Path) -> None:
    written(directory, register_record.encode(LED), b"another token")


def open_to_others(directory: Path) -> None:
    written(directory, register_record.encode(LED))
    (directory / register_name("job")).chmod(0o777)


@pytest.mark.parametrize(
    "make", [of_another_version, no_record, under_another_token, open_to_others]
)
def test_L6_a_register_that_cant_be_read_is_left_alone(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path)
    before = files(tmp_path)
    with pytest.raises(RallypointError):
        release(notice_of(tmp_path), LIMIT_S)
    assert files(tmp_path) == before


def test_L6_no_register_is_made_for_a_job_that_has_none(tmp_path: Path) -> None:
    assert not release(notice_of(tmp_path), LIMIT_S)
    assert files(tmp_path) == {}
    with pytest.raises(RendezvousConnectionError):
        release(notice_of(tmp_path / "gone"), LIMIT_S)
    assert files(tmp_path) == {}


def test_L6_a_directory_that_comes_back_in_time_is_used(tmp_path: Path) -> None:
    """As one of a file server that was restarted at the same moment."""
    there, away = tmp_path / "jobs", tmp_path / "away"
    there.mkdir()
    written(there, register_record.encode(LED))
    there.rename(away)
    with ThreadPoolExecutor() as threads:
        releasing = threads.submit(release, notice_of(there), patience(30.0))
        with pytest.raises(TimeoutError):
            releasing.result(LIMIT_S)
        away.rename(there)
        assert releasing.result(patience(30.0))


class LateSwap(MemoryRendezvousBackend):
    """Stores what its leader has sent last when somebody else swaps."""

    def __init__(self, late: LeadRecord) -> None:
        super().__init__()
        super().set_state(register_record.encode(LED))
        self._late: LeadRecord | None = late

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        if self._late is not None:
            late, self._late = self._late, None
            found = self.get_state()
            super().set_state(register_record.encode(late), found[1] if found else None)
        return super().set_state(state, token)


def test_L6_a_swap_that_the_leader_sent_before_it_was_killed_is_followed() -> None:
    late = Lead(LED, 0.0).next(record_of(new_job(SharedSettings("job", 1, 2), 6)))
    register = LateSwap(late)
    assert mark_dead(register, EPOCH)
    expected = replace(late, beat=late.beat + 1, is_vacant=True, is_dead=True)
    assert register_record.decode(known(state_of(register))) == expected


def test_L6_a_claim_that_comes_first_is_left_alone() -> None:
    claim = claimed(LED, LEADER, nonce=8)
    register = LateSwap(claim)
    assert not mark_dead(register, EPOCH)
    assert register_record.decode(known(state_of(register))) == claim


PLACE = DeadPlace(Stamp(5, 0), 1, "b")


def test_L4_who_hears_of_a_death_is_read_in_the_register(tmp_path: Path) -> None:
    job = replace(JOB, round=0, is_active=True, nodes=2, leader_rank=0)
    notice = DeathNotice(
        *("127.0.0.1", 1, "job", TOKEN, "life", 1, b"s"), PLACE, register=directory_at(tmp_path)
    )
    look = who_hears(notice, LIMIT_S)
    assert look() == (), "there is no record yet"
    written(tmp_path, register_record.encode(replace(LED, job=job)))
    assert look() == LEADER.addresses
    written(tmp_path, register_record.encode(replace(LED, job=job, is_vacant=True)))
    assert look() == ()
    assert look() == who_hears(replace(notice_of(tmp_path), place=PLACE), LIMIT_S)()
    written(tmp_path, register_record.encode(replace(LED, job=replace(job, stopped=b"\x02"))))
    assert look() is None


def test_L4_a_register_that_is_away_may_tell_later_who_hears_of_a_death(tmp_path: Path) -> None:
    notice = replace(notice_of(tmp_path / "away"), place=PLACE)
    assert who_hears(notice, LIMIT_S)() == ()
    nobody_answers = replace(notice, register=etcd_at(EtcdConfig(("127.0.0.1:1",))))
    assert who_hears(nobody_answers, LIMIT_S)() == ()
