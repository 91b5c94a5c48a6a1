"""What a coordinator's log tells of the strangers that it turned away."""

from __future__ import annotations

import asyncio

from rallypoint.coordinator.acceptor import CloseReason, ConnectionLog
from rallypoint.store.refusal_log import LINES_MAX


def told_of(strangers: list[tuple[str, CloseReason, str]]) -> list[str]:
    lines: list[str] = []

    async def body() -> None:
        log = ConnectionLog(lambda record: lines.append(record.text))
        for peer, kind, why in strangers:
            log.refused(peer, kind, why)
        log.close()
        log.close()

    asyncio.run(body())
    return lines


def test_a_flood_is_one_line_and_a_count_of_each_kind() -> None:
    flood = [(f"10.0.0.1:{n}", CloseReason.FOREIGN, f"it began with {n}") for n in range(3000)]
    flood += [("10.0.0.1:1", CloseReason.SILENT, "it did not finish the handshake")] * 20
    first, second, rest = told_of(flood)
    assert first == "closed the connection from 10.0.0.1:0: it began with 0"
    assert second == ("closed the connection from 10.0.0.1:1: it did not finish the handshake")
    assert rest.startswith("closed 3018 more connections within 60 s, the last from 10.0.0.1: ")
    assert rest.endswith(
        ": 2999 did not use Rallypoint's protocol, 19 did not finish the handshake"
    )


def test_a_flood_from_many_addresses_is_cut_short() -> None:
    flood = [(f"10.0.{n // 256}.{n % 256}:1", CloseReason.FOREIGN, "no") for n in range(2000)]
    assert len(told_of(flood)) == LINES_MAX + 1


def test_each_mistake_of_a_node_is_told_though_others_made_another() -> None:
    mistakes = [
        ("10.0.0.1:1", CloseReason.UNPROVEN, f"wrong token for job {job!r}") for job in "abab"
    ]
    assert told_of(mistakes) == [
        "closed the connection from 10.0.0.1:1: wrong token for job 'a'",
        "closed the connection from 10.0.0.1:1: wrong token for job 'b'",
        "closed 2 more connections within 60 s, the last from 10.0.0.1: 2 failed the handshake",
    ]
