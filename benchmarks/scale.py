"""One coordinator and N nodes: what it takes to meet, to go on after a loss, to come back after a
takeover, and to be at rest.

benchmarks/scale.py [--quick] [-n TIMES] [--counts N,N,...]

Prints Markdown, and draws docs/scale.svg if all of its numbers were measured. The nodes are real
sessions in a few processes (`scale_nodes.py`), the coordinator is `rallypoint serve --data-dir`.
Every run has a network of its own, so that the bytes on its loopback are those of the job. The
floor is a barrier at torch's TCPStore of as many clients, which are connected already; it is
measured in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import free_port, machine
from picture import charts
from rendezvous import own_network
from rendezvous_nodes import bring_loopback_up, cpu_s, hear, loopback_bytes
from tables import interleaved, markdown, spread

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "scale.svg"
COUNTS = (100, 1000, 4000, 10_000)
LEASE_S = 15.0
LARGEST_FLOOR = 4000
"""More clients than that, which are threads, measure the threads."""
LIMIT_S = 300.0
Found = dict[str, float]
LINES = {
    "meet_s": "first connect to last assignment",
    "again_s": "one node is lost: last assignment of the next round",
    "back_s": "the coordinator is killed and started again: last node is back",
    "end_s": "all succeed: the last node knows it",
}
"""What is drawn, in seconds, and the floor."""
TARGETS = (
    ("1,000 nodes meet, seconds", 1000, "meet_s", 1.0),
    ("1,000 nodes meet / barrier", 1000, "barriers", 5.0),
    ("4,000 nodes meet, seconds", 4000, "meet_s", 4.0),
    ("4,000 nodes meet / barrier", 4000, "barriers", 5.0),
    ("10,000 nodes meet, seconds", 10_000, "meet_s", 12.0),
    ("10,000 nodes: next round after a loss, seconds", 10_000, "again_s", 8.0),
    ("10,000 nodes at rest, share of a core", 10_000, "rest", 0.5),
    ("kB for each of 10,000 sessions", 10_000, "kb_each", 60.0),
)


def main() -> None:
    """Measure, and print."""
    options = parsed()
    os.environ["RALLYPOINT_TOKEN"] = secrets.token_hex(32)
    if options.once:
        print(json.dumps(once(options.once, options.rest)))
        return
    print(f"Scale: {machine()}\n", flush=True)
    counts = [int(count) for count in options.counts.split(",")]
    found = {count: measured(count, options) for count in counts}
    print(markdown("Seconds", ("nodes", "barrier (floor)", *LINES.values()), seconds(found)))
    heads = ("nodes", "CPU ms of a join", "bytes to join", "kB of a session")
    rests = (
        "at rest: heartbeat s",
        "at rest: core",
        "one heartbeat a second: core",
        "each with a step: core",
    )
    lates = ("nodes that were not back within their lease",)
    print(markdown("The coordinator", (*heads, *rests, *lates), costs(found)))
    print(markdown("Targets", ("", "measured", "target", ""), targets(found)))
    if counts == list(COUNTS):
        PICTURE.write_text(picture(found))


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Scale")
    parser.add_argument("--quick", action="store_true", help="100 nodes, once")
    parser.add_argument("-n", type=int, default=3, help="how often each is measured (3)")
    parser.add_argument("--counts", default=",".join(map(str, COUNTS)), help="numbers of nodes")
    parser.add_argument("--rest", type=float, default=6.0, help="seconds at rest, at least (6)")
    parser.add_argument("--once", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.n, options.counts, options.rest = 1, str(COUNTS[0]), 1.0
    return options


def measured(count: int, options: argparse.Namespace) -> list[Found]:
    """So often; each with the floor of the same moment."""
    of_rallypoint: list[Found] = []

    def run(*command: object) -> Found:
        done = subprocess.run(
            [*own_network(), sys.executable, *map(str, command)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        answer: Found = json.loads(done.stdout.splitlines()[-1])
        return answer

    def job() -> float:
        of_rallypoint.append(run(__file__, "--once", count, "--rest", options.rest))
        return 0.0

    def floor() -> float:
        if options.quick or count > LARGEST_FLOOR:
            return math.nan
        return run(HERE / "rendezvous_nodes.py", "floor", count)["seconds"]

    floors = interleaved(options.n, {"floor": floor, "job": job})["floor"]
    return [
        each | {"floor_s": at, "barriers": each["meet_s"] / at}
        for each, at in zip(of_rallypoint, floors, strict=True)
    ]


# One run


class Coordinator:
    """`rallypoint serve`, which keeps its jobs in a directory."""

    def __init__(self, directory: str) -> None:
        self.port = free_port()
        serve = ["serve", "--host=127.0.0.1", f"--port={self.port}", "--quiet"]
        self._command = [sys.executable, "-m", "rallypoint", *serve, f"--data-dir={directory}"]
        self.process = self._begin()

    def restart(self) -> float:
        """Kill it, and start it again at once; the moment of its death."""
        killed_at = time.monotonic()
        self.close()
        self.process = self._begin()
        return killed_at

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    @property
    def cpu_s(self) -> float:
        """What it has used so far."""
        return cpu_s(self.process.pid)

    @property
    def memory_kb(self) -> float:
        """What it has in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1000

    def _begin(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return process
            time.sleep(0.002)
        raise SystemExit("the coordinator does not listen")


class Nodes:
    """Of all processes that have some."""

    def __init__(self, count: int, port: int) -> None:
        number = min(count, os.cpu_count() or 1)
        firsts = [count * share // number for share in range(number + 1)]
        self._shares = [
            subprocess.Popen(
                [
                    sys.executable,
                    HERE / "scale_nodes.py",
                    *map(str, (port, first, end - first, count, LEASE_S)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for first, end in pairwise(firsts)
        ]
        for share in self._shares:
            hear(share)

    def tell(self, command: str, shares: slice = slice(None)) -> list[Any]:
        """What each process answers, when it has done that."""
        for share in self._shares[shares]:
            assert share.stdin is not None
            share.stdin.write(f"{command}\n")
            share.stdin.flush()
        return [hear(share) for share in self._shares[shares]]

    def close(self) -> None:
        """End all of them at once."""
        for share in self._shares:
            share.kill()
            share.wait()


def once(count: int, rest_s: float) -> Found:
    """All that is measured of so many nodes."""
    bring_loopback_up()
    with contextlib.ExitStack() as cleaned:
        directory = cleaned.enter_context(tempfile.TemporaryDirectory())
        os.chmod(directory, 0o700)
        coordinator = Coordinator(directory)
        cleaned.callback(coordinator.close)
        nodes = Nodes(count, coordinator.port)
        cleaned.callback(nodes.close)
        found, used_s, used_kb = {}, coordinator.cpu_s, coordinator.memory_kb
        sent = loopback_bytes()
        began_at = min(nodes.tell("connect"))
        found["meet_s"] = max(nodes.tell("assigned")) - began_at
        found["join_ms"] = 1000 * (coordinator.cpu_s - used_s) / count
        found["bytes"] = (loopback_bytes() - sent) / count
        nodes.tell("started")
        found["kb_each"] = (coordinator.memory_kb - used_kb) / count
        found["beat_s"] = max(nodes.tell("pace told"))
        found["rest"] = at_rest(coordinator, found["beat_s"], rest_s)
        nodes.tell("pace own")
        found["rest_1s"] = at_rest(coordinator, 1.0, rest_s)
        nodes.tell("train")
        found["trains_1s"] = at_rest(coordinator, 1.0, rest_s)
        nodes.tell("train")
        nodes.tell("pace told")
        [lost_at] = nodes.tell("lose", slice(1))
        found["again_s"] = max(nodes.tell("assigned")) - lost_at
        nodes.tell("started")
        killed_at = coordinator.restart()
        found["back_s"] = max(nodes.tell("resumed")) - killed_at
        found["too_late"] = sum(nodes.tell("disturbed"))
        if found["too_late"]:
            return found | {"end_s": math.nan}
        began_at = min(nodes.tell("succeed"))
        found["end_s"] = max(nodes.tell("ended")) - began_at
    return found


def at_rest(coordinator: Coordinator, beat_s: float, least_s: float) -> float:
    """The share of a core that it takes while nothing happens."""
    time.sleep(2 * beat_s)  # Until all keep this pace.
    used_s, began_at = coordinator.cpu_s, time.monotonic()
    time.sleep(max(least_s, 2 * beat_s))
    return (coordinator.cpu_s - used_s) / (time.monotonic() - began_at)


# What is shown


def seconds(found: dict[int, list[Found]]) -> list[list[str]]:
    names = ("floor_s", *LINES)
    return [
        [f"{count:,}", *(cell([run[name] for run in runs]) for name in names)]
        for count, runs in found.items()
    ]


def cell(values: list[float]) -> str:
    return "-" if any(map(math.isnan, values)) else spread(values)


def costs(found: dict[int, list[Found]]) -> list[list[str]]:
    names = {"join_ms": 2, "bytes": 0, "kb_each": 1, "beat_s": 1, "rest": 2, "rest_1s": 2}
    names |= {"trains_1s": 2, "too_late": 0}
    return [
        [f"{count:,}", *(spread([run[name] for run in runs], names[name]) for name in names)]
        for count, runs in found.items()
    ]


def targets(found: dict[int, list[Found]]) -> list[list[str]]:
    rows = [(what, middle(found, count, name), aim) for what, count, name, aim in TARGETS]
    growth = middle(found, 10_000, "meet_s") / middle(found, 1000, "meet_s") / 10
    rows.append(("10,000 nodes meet / ten times 1,000", growth, 1.2))
    rows.append(("10,000 nodes: heartbeat / lease", middle(found, 10_000, "beat_s") / LEASE_S, 0.2))
    return [
        [what, f"{value:.2f}", f"at most {aim:g}", "met" if value <= aim else "missed"]
        for what, value, aim in rows
        if not math.isnan(value)  # not where one side was not measured
    ]


def middle(found: dict[int, list[Found]], count: int, name: str) -> float:
    values = [run[name] for run in found.get(count, ())]
    return statistics.median(values) if values else float("nan")


def picture(found: dict[int, list[Found]]) -> str:
    value = partial(middle, found)
    lines = {"barrier of torch's TCPStore (floor)": "floor_s", "meet": "meet_s"}
    lines |= {"next round after a loss": "again_s", "back after a takeover": "back_s"}
    rest = {"at the pace that nodes are told": "rest", "one heartbeat a second": "rest_1s"}
    panels = {
        title: {
            line: [(float(n), value(n, name)) for n in found if not math.isnan(value(n, name))]
            for line, name in named.items()
        }
        for title, named in (("seconds", lines), ("share of a core at rest", rest))
    }
    return charts(panels, "nodes")


if __name__ == "__main__":
    main()
