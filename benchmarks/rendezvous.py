"""How long N nodes take to meet, and what it costs, beside torch's own rendezvous.

benchmarks/rendezvous.py [--quick] [-n TIMES]

Prints Markdown, and draws docs/rendezvous.svg unless it is quick. Every measurement is a process
with a network of its own, so that the bytes on its loopback are those of the rendezvous: headers
and acknowledgements included.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

from measure import is_quick, prepare
from picture import charts
from tables import interleaved, markdown, spread

NODES = Path(__file__).with_name("rendezvous_nodes.py")
KINDS = ("floor", "torch", "compare and swap", "coordinator")
COUNTS = (2, 8, 32, 64, 128, 256, 512, 1024)
LIMIT_S = 75.0
"""Who has not met within a minute is not asked to meet in larger numbers."""
SLOW_S = 10.0
"""What takes longer is measured once."""
LARGEST = {"compare and swap": 256}
"""More threads than that in one process measure the interpreter, not the rendezvous."""
PICTURE = Path(__file__).parent.parent / "docs" / "rendezvous.svg"
Found = dict[str, float]
gave_up: set[str] = set()


def main() -> None:
    """Measure, and print."""
    times = prepare("Rendezvous", 5)
    counts = COUNTS[:1] if is_quick() else COUNTS
    found = {count: measure(count, times) for count in counts}
    print(markdown("Seconds until all have met", ("nodes", *KINDS), rows(found, "seconds")))
    for title, name in (
        ("Bytes per node, both directions", "bytes_per_node"),
        ("Requests per node", "messages_per_node"),
        ("CPU seconds of the server", "server_cpu_s"),
    ):
        print(markdown(title, ("nodes", *KINDS), rows(found, name)))
    print(markdown("Targets", ("", "measured", "target", ""), targets(found)))
    if not is_quick():
        PICTURE.write_text(picture(found))


def measure(count: int, times: int) -> dict[str, list[Found]]:
    """Every kind in turn, as often; torch's as far as it gets within its limit."""
    found: dict[str, list[Found]] = {}

    def once(kind: str) -> float:
        command = [
            "unshare",
            "--net",
            "--map-root-user",
            sys.executable,
            str(NODES),
            kind,
            str(count),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            gave_up.add(kind)
            return LIMIT_S
        found.setdefault(kind, []).append(json.loads(done.stdout.splitlines()[-1]))
        return LIMIT_S

    measured = KINDS if not is_quick() else [kind for kind in KINDS if kind != "torch"]
    kinds = [kind for kind in measured if kind not in gave_up and count <= LARGEST.get(kind, count)]
    interleaved(1, {kind: partial(once, kind) for kind in kinds})
    again = [k for k in kinds if k not in gave_up and found[k][0]["seconds"] < SLOW_S]
    if again:
        interleaved(times - 1, {kind: partial(once, kind) for kind in again})
    return found


@cache
def own_network() -> tuple[str, ...]:
    """What a command is started with, where the system allows it; else all traffic is counted."""
    prefix = ("unshare", "--net", "--map-root-user")
    try:
        subprocess.run([*prefix, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        print("(no network of its own here: the bytes are those of the whole machine)\n")
        return ()
    return prefix


def rows(found: dict[int, dict[str, list[Found]]], name: str) -> list[list[str]]:
    return [
        [str(count), *(cell([one[name] for one in kinds.get(kind, [])]) for kind in KINDS)]
        for count, kinds in found.items()
    ]


def cell(values: list[float]) -> str:
    digits = 3 if values and max(values) < 100 else 0
    return f"{spread(values, digits)} n={len(values)}" if values else "-"


def middle(found: dict[int, dict[str, list[Found]]], count: int, kind: str, name: str) -> float:
    values = [one[name] for one in found.get(count, {}).get(kind, [])]
    return statistics.median(values) if values else float("nan")


def targets(found: dict[int, dict[str, list[Found]]]) -> list[list[str]]:
    """What was aimed at, where both sides were measured."""

    def of(count: int, kind: str, name: str = "seconds") -> float:
        return middle(found, count, kind, name)

    messages = [of(count, "coordinator", "messages_per_node") for count in found]
    aims = [
        ("coordinator: most messages of a node to join", max(messages), 6.0, False),
        ("torch / coordinator, 256 nodes", of(256, "torch") / of(256, "coordinator"), 50.0, True),
        ("coordinator / floor, 256 nodes", of(256, "coordinator") / of(256, "floor"), 10.0, False),
        ("coordinator, 1024 nodes, seconds", of(1024, "coordinator"), 1.0, False),
        (
            "torch / compare and swap, 64 nodes, bytes",
            of(64, "torch", "bytes_per_node") / of(64, "compare and swap", "bytes_per_node"),
            3.0,
            True,
        ),
    ]
    aims += [
        (
            f"compare and swap / torch, {n} nodes",
            of(n, "compare and swap") / of(n, "torch"),
            1,
            False,
        )
        for n in found
    ]
    return [
        [
            what,
            f"{value:.2f}",
            f"at {'least' if at_least else 'most'} {aim:g}",
            "met" if (value >= aim if at_least else value <= aim) else "missed",
        ]
        for what, value, aim, at_least in aims
        if value == value  # not where one side was not measured
    ]


def picture(found: dict[int, dict[str, list[Found]]]) -> str:
    panels = {
        title: {
            kind: [
                (float(count), middle(found, count, kind, name))
                for count in found
                if found[count].get(kind)
            ]
            for kind in KINDS
        }
        for title, name in (
            ("seconds until all have met", "seconds"),
            ("bytes per node", "bytes_per_node"),
        )
    }
    return charts(panels, "nodes")


if __name__ == "__main__":
    main()
