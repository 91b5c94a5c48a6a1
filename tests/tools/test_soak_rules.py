"""The rules that a soak checks find what is planted (`make soak`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.fault.soak.bad_nodes import FAILING
from tests.fault.soak.ledger import (
    CHARGED,
    ENDED,
    Broken,
    Entry,
    Ledger,
    is_ok,
    summary,
)
from tests.fault.soak.plan import cycle, events_of, plan_of
from tests.fault.soak.worlds import OVERLAP_S, WorkerRecord, WorldId, broken_rules, is_complete


def world(
    round_: int, nodes: str, began_at: float, seen_at: float, life: int = 1
) -> list[WorkerRecord]:
    """One worker for each of these nodes."""
    return [
        WorkerRecord(
            world=WorldId(life, round_),
            rank=rank,
            world_size=len(nodes),
            node=node,
            pid=100 * round_ + rank,
            began_at=began_at,
            seen_at=seen_at,
            met_at=began_at + 0.1,
        )
        for rank, node in enumerate(nodes)
    ]


FIRST, SECOND = world(0, "abc", 10.0, 20.0), world(1, "ab", 21.0, 30.0)
TWICE = replace(FIRST[1], node="d", pid=7)


def test_worlds_one_after_another_break_no_rule() -> None:
    assert broken_rules([]) == []
    assert broken_rules(FIRST + SECOND) == []
    renumbered = [replace(each, world=each.world._replace(incarnation=2)) for each in SECOND]
    assert broken_rules(FIRST + renumbered) == [], "a takeover may change the number"
    assert is_complete(FIRST)


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ([*FIRST, TWICE], "round 0 of incarnation 1 has rank 1 2 times, on b, d"),
        ([*FIRST, *world(0, "de", 10.0, 20.0)], "has two worlds, of 2 and 3 workers"),
        ([*FIRST[:2], replace(FIRST[2], rank=3)], "has rank 3, of 3 workers"),
        (FIRST[:2], "round 0 of incarnation 1 has met without ranks [2]"),
        (FIRST + world(1, "ab", 9.0, 9.5), "began after round 1"),
        (
            FIRST + world(1, "ab", 19.0 - OVERLAP_S, 30.0),
            "rank 0 of round 0 of incarnation 1 (node a) lived for 1.5 s when round 1",
        ),
        (
            FIRST + world(0, "abc", 21.0, 30.0, life=2),
            "begun anew: round 0 of incarnation 2 came after round 0 of incarnation 1",
        ),
    ],
)
def test_a_planted_wrong_world_is_found(workers: list[WorkerRecord], told: str) -> None:
    broken = broken_rules(workers)
    assert any(told in line for line in broken), broken


def test_a_worker_that_is_seen_a_moment_after_the_next_world_began_is_no_overlap() -> None:
    assert broken_rules(FIRST + world(1, "ab", 20.0 - OVERLAP_S / 2, 30.0)) == []


def test_a_world_is_complete_when_all_its_ranks_have_met() -> None:
    assert not is_complete([])
    assert not is_complete(FIRST[:2])
    assert not is_complete([*FIRST[:2], replace(FIRST[2], met_at=None)])


GOOD = Entry(seed=1, number=0, backend="file", job=0, event="kill_agent", spent_s=60, settled_s=2)


def test_a_ledger_goes_on_where_a_killed_run_has_left_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    first = Ledger(path)
    first.append(GOOD)
    first.append(replace(GOOD, number=1, broken=(Broken(ENDED, "exit code 1"),)))
    with path.open("ab") as file:
        file.write(b'{"seed": 1, "num')
    again = Ledger(path)
    assert again.entries == first.entries
    assert again.spent_s == 120
    again.append(replace(GOOD, number=2))
    assert [entry.number for entry in Ledger(path).entries] == [0, 1, 2]


def test_the_summary_counts_events_and_broken_rules() -> None:
    bad = replace(GOOD, number=1, settled_s=5, broken=(Broken(ENDED, "exit code 1"),))
    worse = replace(GOOD, number=2, event="same_id", broken=(Broken(CHARGED, "1 restart"),))
    away = replace(GOOD, number=3, event="no_store", skipped="the leader has rank 0")
    told = summary([GOOD, bad, worse, away]).splitlines()
    assert "kill_agent                             2    3.5 s   2.0 s   5.0 s       1" in told
    assert "  skipped 1 times: the leader has rank 0" in told
    assert "jobs ended wrongly       1" in told
    assert "wrong charges            1" in told
    assert "leftovers                0" in told
    assert "event 1 (kill_agent): ended: exit code 1" in told
    assert is_ok([GOOD])
    assert not is_ok([GOOD, bad])


@pytest.mark.parametrize("backend", ["file", "etcd", "kubernetes"])
def test_each_event_happens_in_each_six_cycles_in_an_order_that_the_seed_gives(
    backend: str,
) -> None:
    cycles = [cycle(backend, 1, number) for number in range(6)]
    plans = [plan for of_one in cycles for plan in of_one]
    assert {plan.event for plan in plans} == events_of(backend).keys()
    assert plans == [plan_of(backend, 1, number) for number in range(len(plans))]
    assert plan_of(backend, 1, len(plans)) == cycle(backend, 1, 6)[0]
    assert cycles[0] != cycles[1]
    assert cycles[0] != cycle(backend, 2, 0)


def test_workers_fail_on_two_machines_of_a_job_at_most() -> None:
    for number in range(6):
        for has_budget in (False, True):
            events = [
                plan.event for plan in cycle("file", 1, number) if plan.has_budget is has_budget
            ]
            assert len(events) == len(set(events))
            assert len({*FAILING} & {*events}) <= 2
