"""How long a heartbeat takes while strangers flood the coordinator's port with garbage.

benchmarks/strangers.py [--quick] [-n TIMES]

Prints Markdown. The floor is the same coordinator (`rallypoint serve`) left in peace. A heartbeat
is sent every 20 ms, and its delay is the time until it is acknowledged. All on loopback; the number
of connections and the time are bounded.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from measure import free_port, is_quick, prepare
from rallypoint.coordinator.client.token import parse_token
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.core import messages as m
from rallypoint.core.model import SharedSettings
from rallypoint.errors import PeerHungUpError, RendezvousConnectionError
from rallypoint.wire.address import Address
from tables import interleaved, markdown, spread

FLOOD = Path(__file__).with_name("strangers_flood.py")
PER_SECOND = 3200
SECONDS, QUICK_SECONDS = 3.0, 0.5
BEAT_S = 0.02
DELAY_S = 0.2
START_S = 30.0
HEAD = ("strangers", "a heartbeat", "the slowest of a run", "target", "they came, per s", "n")
SETTINGS = SharedSettings("bench", 1, 2)


def main() -> int:
    """Measure and print one table."""
    times = prepare("Strangers")
    seconds = QUICK_SECONDS if is_quick() else SECONDS
    medians: dict[str, list[float]] = {"none": [], "garbage": []}
    rates: list[float] = []
    with serving() as port:
        variants = {
            "none": partial(slowest, port, seconds, medians["none"], None),
            "garbage": partial(slowest, port, seconds, medians["garbage"], rates),
        }
        found = interleaved(times, variants)
    rows = [
        ["none", spread(medians["none"], 4), spread(found["none"], 4), "-", "-", str(times)],
        [
            f"{PER_SECOND} a second",
            spread(medians["garbage"], 4),
            spread(found["garbage"], 4),
            f"{'met' if max(found['garbage']) <= DELAY_S else 'missed'} ({DELAY_S:g})",
            f"{statistics.median(rates):.0f}",
            str(times),
        ],
    ]
    title = "How long a heartbeat takes while strangers connect (seconds)"
    print(markdown(title, HEAD, rows), flush=True)
    return 0


@contextmanager
def serving() -> Iterator[int]:
    """The port of a coordinator, which is ended afterwards."""
    port = free_port()
    program = str(Path(sys.executable).with_name("rallypoint"))
    command = [program, "serve", "--host=127.0.0.1", f"--port={port}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def slowest(port: int, seconds: float, medians: list[float], rates: list[float] | None) -> float:
    """The slowest heartbeat of one run; the median and the strangers' rate are added to these."""
    flood = None
    if rates is not None:
        words = [sys.executable, str(FLOOD), str(port), str(PER_SECOND), str(seconds + 2 * BEAT_S)]
        flood = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert flood.stdout is not None
        flood.stdout.readline()
    delays = asyncio.run(beat(port, seconds))
    if flood is not None and rates is not None:
        connected, _ = flood.communicate()
        rates.append(int(connected) / (seconds + 2 * BEAT_S))
    medians.append(statistics.median(delays))
    return max(delays)


async def beat(port: int, seconds: float) -> list[float]:
    """The delay of each heartbeat of one node for so long."""
    loop = asyncio.get_running_loop()
    connection = await attached(port)
    sent: dict[int, float] = {}
    delays: list[float] = []
    answered = asyncio.Event()

    def hear(message: m.ToAgent) -> None:
        if isinstance(message, m.HeartbeatAck):
            delays.append(loop.time() - sent.pop(message.number))
            if not sent:
                answered.set()

    connection.listen(hear)
    ends_at, number = loop.time() + seconds, 0
    while loop.time() < ends_at:
        number += 1
        sent[number] = loop.time()
        answered.clear()
        connection.send(m.Heartbeat(number))
        await asyncio.sleep(BEAT_S)
    async with asyncio.timeout(START_S):
        await answered.wait()
    connection.send(m.Numbered(1, m.Leave()))
    await connection.lost
    return delays


async def attached(port: int) -> ClientConnection:
    """A session of a node of its own, as soon as somebody serves."""
    token = parse_token(os.environ["RALLYPOINT_TOKEN"], "the benchmark").for_job(SETTINGS.run_id)
    give_up_at = time.monotonic() + START_S
    while True:
        try:
            connection = await dial([Address("127.0.0.1", port)], SETTINGS.run_id, token)
            break
        except (PeerHungUpError, RendezvousConnectionError):
            if time.monotonic() > give_up_at:
                raise
            await asyncio.sleep(BEAT_S)
    connection.send(m.Attach("node", "host", os.urandom(8).hex(), 1, SETTINGS))
    return connection


if __name__ == "__main__":
    sys.exit(main())
