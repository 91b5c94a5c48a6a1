"""`rallypoint events`: many nodes that do the same are one line."""

from __future__ import annotations

from tests.harness.broken_jobs import NODES, running

from rallypoint.core.watch.event_groups import fold_entries
from rallypoint.core.watch.history import HistoryEntry


def entry(number: int, text: str, at: float = 0.0, *, is_wrong: bool = False) -> HistoryEntry:
    node = text.split()[1]
    return HistoryEntry(number, at, "any", "INFO", 0, text, node, is_wrong)


def texts(*entries: HistoryEntry) -> list[str]:
    return [one.text for one in fold_entries(entries)]


def test_the_nodes_of_a_job_that_begins_are_one_line() -> None:
    entries = fold_entries(running().history.entries)
    assert entries[0].text == f"{NODES} nodes joined: node-[0-63]"
    assert entries[0].number == 1
    assert entries[1].text.startswith("round 0: 64 nodes")


def test_nodes_that_are_lost_for_one_reason_are_one_line() -> None:
    lost = [entry(n, f"node n{n} was lost: no power", is_wrong=True) for n in (1, 2, 3)]
    other = entry(4, "node n4 was lost: its disk is full", is_wrong=True)
    assert texts(*lost, other) == [
        "3 nodes were lost (n[1-3]): no power",
        "node n4 was lost: its disk is full",
    ]
    assert fold_entries(lost)[0].is_wrong


def test_what_happens_between_parts_them_and_so_does_time() -> None:
    joined = [entry(n, f"node n{n} joined") for n in (1, 2)]
    between = entry(3, "round 0: 2 nodes")
    late = entry(4, "node n3 joined", 61.0)
    assert texts(*joined, between, *joined, late) == [
        "2 nodes joined: n[1-2]",
        "round 0: 2 nodes",
        "2 nodes joined: n[1-2]",
        "node n3 joined",
    ]


def test_a_node_that_joins_and_is_held_back_has_its_own_line() -> None:
    held = entry(2, "node n2 joined; it is held back for 120 s: it was lost 3 times")
    assert texts(entry(1, "node n1 joined"), held) == ["node n1 joined", held.text]
