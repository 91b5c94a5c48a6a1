"""A node with the job's token that is refused again and again fills no log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.fuzz.hostile_node import RULES, Liar, Scene

from rallypoint.core import messages as m
from rallypoint.store.refusal_log import LINES_MAX

NODES = 300


def settings_of_a_newer_job(liar: Liar, number: int) -> None:
    """The job that runs refuses these."""
    liar.attach(settings=replace(RULES, max_restarts=100 + number))


def settings_of_no_job(liar: Liar, number: int) -> None:
    """The coordinator refuses these, whatever runs."""
    liar.attach(settings=replace(RULES, min_nodes=3, max_nodes=2, max_restarts=100 + number))


def garbage(liar: Liar, number: int) -> None:
    """It attaches, and then sends no frame."""
    liar.attach()
    liar.scene.go_on()
    liar.scene.servers[-1].data_received(bytes(16 + number))


def told_of(mistake: Callable[[Liar, int], None]) -> tuple[list[str], list[m.ToAgent]]:
    """What the coordinator's log has of that mistake of many nodes, and what they were told."""
    heard: list[m.ToAgent] = []

    async def body() -> list[str]:
        scene = Scene()
        for number in range(NODES):
            liar = Liar(scene, f"zz{number}")
            mistake(liar, number)
            scene.go_on()
            heard.extend(liar.heard)
        scene.close()
        scene.close()
        names = "node_refused", "connection_closed"
        return [record.text for record in scene.records if record.name in names]

    return asyncio.run(body()), heard


@pytest.mark.parametrize("mistake", [settings_of_a_newer_job, settings_of_no_job])
def test_nodes_that_are_refused_again_and_again_have_a_bounded_number_of_lines(
    mistake: Callable[[Liar, int], None],
) -> None:
    lines, heard = told_of(mistake)
    assert sum(isinstance(message, m.Refused) for message in heard) == NODES
    assert 1 < len(lines) <= LINES_MAX + 1
    last = lines[-1]
    assert last.startswith(f"refused {NODES + 1 - len(lines)} more within 60 s, the last from 127.")


def test_a_node_with_the_same_mistake_has_one_line() -> None:
    def again(liar: Liar, _: int) -> None:
        settings_of_a_newer_job(liar, 1)

    lines, _ = told_of(again)
    assert len(lines) == 2
    assert lines[0].startswith("refused 127.0.0.1:50003: ")
    why = lines[0].partition(": ")[2]
    assert lines[1].startswith(f"refused {NODES - 1} more within 60 s, the last from 127.0.0.1:")
    assert lines[1].endswith(why)


def test_nodes_that_break_the_protocol_again_and_again_have_a_bounded_number_of_lines() -> None:
    lines, _ = told_of(garbage)
    assert len(lines) <= LINES_MAX + 1
    assert lines[-1].startswith("closed ")
    assert lines[-1].endswith(" were those of nodes, and broke the protocol")
