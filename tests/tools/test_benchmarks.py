"""The benchmarks run and fill their tables. What they measure is judged elsewhere: by a person.

`make bench` runs all of these before it measures, and `make test` those that take least.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.harness.benchmarks import BENCHMARKS, quick

pytestmark = pytest.mark.bench
MEASURED = re.compile(r"-?\d+\.\d+ \[-?\d+\.\d+ \.\. -?\d+\.\d+\]")


@pytest.mark.parametrize(
    ("name", "rows"),
    [pytest.param("launch", 3, marks=pytest.mark.quick), ("devices", 1), ("recovery", 4)],
)
def test_a_quick_benchmark_fills_its_tables(name: str, rows: int, tmp_path: Path) -> None:
    out = quick(tmp_path, f"{name}.py")
    lines = [line for line in out.splitlines() if line.startswith("|")]
    measured = [line for line in lines if len(MEASURED.findall(line)) >= 2]
    assert len(measured) == rows, out
    assert all("met" in line or "missed" in line for line in measured)
    # An agent that was killed can't remove its own folder; the benchmark's must be gone.
    assert list(tmp_path.glob("rallypoint-bench-*")) == []


def test_the_quick_benchmark_of_taking_over_fills_its_table(tmp_path: Path) -> None:
    out = quick(tmp_path, "takeover.py")
    measured = [line for line in out.splitlines() if MEASURED.search(line)]
    assert len(measured) == 2, out
    assert not list(tmp_path.iterdir())


def test_the_quick_benchmark_of_output_fills_its_tables(tmp_path: Path) -> None:
    out = quick(tmp_path, "output.py")
    measured = [line for line in out.splitlines() if MEASURED.search(line)]
    assert [line.split(" | ")[0] for line in measured] == [
        *("| floor", "| --output prefix", "| --tee 1"),
        *("| --output prefix", "| with a pattern that matches", "| with one that never does"),
        *("| floor", "| --output prefix", "| --tee 1"),
        "| agent",
        "| relay",
    ]
    assert [line.count("all whole") for line in measured[:3]] == [0, 1, 1]
    assert not list(tmp_path.iterdir())


def test_the_quick_benchmark_of_the_store_fills_its_tables(tmp_path: Path) -> None:
    out = quick(tmp_path, "store.py")
    lines = [line for line in out.splitlines() if line.startswith("|")]
    measured = [line for line in lines if MEASURED.search(line)]
    servers = [line.split()[1] for line in measured[:-14]]
    assert servers[:2] == ["torch", "asyncio"]
    # Operations on servers, operations by client, and what is done at once.
    assert len(measured) == len(servers) + 7 + 4 + 3, out
    for name in ("set", "get", "multi_set"):
        rows = [line for line in measured if line.startswith(f"| {name} ")]
        assert any("met" in line or "missed" in line for line in rows), name


def test_the_quick_benchmark_of_the_rendezvous_fills_its_tables(tmp_path: Path) -> None:
    out = quick(tmp_path, "rendezvous.py")
    lines = [line for line in out.splitlines() if line.startswith("| 2 |")]
    assert [line.count("n=1") for line in lines] == [3, 3, 3, 3], out
    assert "most messages of a node to join | 4.00 | at most 6 | met" in out


def test_the_quick_benchmark_of_scale_fills_its_tables(tmp_path: Path) -> None:
    out = quick(tmp_path, "scale.py")
    [seconds, costs] = [line for line in out.splitlines() if line.startswith("| 100 |")]
    assert len(MEASURED.findall(seconds)) == 4, out
    assert len(costs.split(" | ")) == 9
    assert costs.endswith("| 0 [0 .. 0] |"), "no node was lost"
    assert not list(tmp_path.iterdir())


@pytest.mark.quick
def test_the_quick_benchmark_of_calls_fills_its_table(tmp_path: Path) -> None:
    out = quick(tmp_path, "calls.py")
    measured = [line for line in out.splitlines() if len(MEASURED.findall(line)) == 2]
    assert len(measured) == 6, out
    assert not list(tmp_path.glob("rallypoint-*"))


@pytest.mark.quick
def test_the_quick_benchmark_of_restarts_fills_its_table(tmp_path: Path) -> None:
    out = quick(tmp_path, "restart.py")
    rows = [line for line in out.splitlines() if MEASURED.search(line)]
    assert [line.split("|")[1].strip() for line in rows] == [
        "a fork alone",
        "rallypoint",
        "rallypoint --preload asyncio",
    ]
    assert "met" in rows[2] or "missed" in rows[2]
    assert list(tmp_path.glob("rallypoint-bench-*")) == []


@pytest.mark.quick
def test_the_quick_benchmark_of_strangers_fills_its_table(tmp_path: Path) -> None:
    out = quick(tmp_path, "strangers.py")
    rows = [line for line in out.splitlines() if len(MEASURED.findall(line)) == 2]
    assert [line.split(" | ")[0] for line in rows] == ["| none", "| 3200 a second"]
    assert "met" in rows[1] or "missed" in rows[1]


@pytest.mark.quick
def test_two_versions_are_measured_side_by_side(tmp_path: Path) -> None:
    out = quick(tmp_path, "versions.py", BENCHMARKS.parent, "--only=store")
    measured = [line for line in out.splitlines() if len(MEASURED.findall(line)) == 4]
    assert [line.split(" | ")[0] for line in measured] == [
        "| store, set of 64 B, us",
        "| store, get of 64 B, us",
    ]
    assert not list(tmp_path.iterdir())


def test_the_quick_benchmark_of_torch_clients_fills_its_table(tmp_path: Path) -> None:
    out = quick(tmp_path, "torch_clients.py")
    cells = [line.split(" | ") for line in out.splitlines()[2:]]
    assert [row[:2] for row in cells] == [["| ours", "20"], ["| torch's", "20"]]
    assert all(float(row[2].strip(" |")) > 0 for row in cells)
