"""The benchmarks run and fill their tables. What they measure is judged elsewhere: by a person."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MEASURED = re.compile(r"-?\d+\.\d+ \[-?\d+\.\d+ \.\. -?\d+\.\d+\]")


@pytest.mark.parametrize(("name", "rows"), [("launch", 3), ("recovery", 3)])
def test_a_quick_benchmark_fills_its_tables(name: str, rows: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / f"{name}.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    measured = [line for line in lines if len(MEASURED.findall(line)) >= 2]
    assert len(measured) == rows, done.stdout
    assert all("met" in line or "missed" in line for line in measured)
    # An agent that was killed can't remove its own folder; the benchmark's must be gone.
    assert list(tmp_path.glob("rallypoint-bench-*")) == []


def test_the_quick_benchmark_of_output_fills_its_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "output.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    measured = [line for line in done.stdout.splitlines() if MEASURED.search(line)]
    assert [line.split(" | ")[0] for line in measured] == [
        *("| floor", "| --output prefix", "| --tee 1") * 2,
        "| agent",
        "| relay",
    ]
    assert [line.count("all whole") for line in measured[:3]] == [0, 1, 1]
    assert not list(tmp_path.iterdir())


def test_the_quick_benchmark_of_the_store_fills_its_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "store.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    measured = [line for line in lines if MEASURED.search(line)]
    servers = [line.split()[1] for line in measured[:-14]]
    assert servers[:2] == ["torch", "asyncio"]
    # Operations on servers, operations by client, and what is done at once.
    assert len(measured) == len(servers) + 7 + 4 + 3, done.stdout
    for name in ("set", "get", "multi_set"):
        rows = [line for line in measured if line.startswith(f"| {name} ")]
        assert any("met" in line or "missed" in line for line in rows), name


def test_the_quick_benchmark_of_the_rendezvous_fills_its_tables(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "rendezvous.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line.startswith("| 2 |")]
    assert [line.count("n=1") for line in lines] == [3, 3, 3, 3], done.stdout
    assert "most messages of a node to join | 4.00 | at most 6 | met" in done.stdout


def test_the_quick_benchmark_of_calls_fills_its_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "calls.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    measured = [line for line in done.stdout.splitlines() if len(MEASURED.findall(line)) == 2]
    assert len(measured) == 6, done.stdout
    assert not list(tmp_path.glob("rallypoint-*"))


def test_the_quick_benchmark_of_restarts_fills_its_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "restart.py", "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line for line in done.stdout.splitlines() if MEASURED.search(line)]
    assert [line.split("|")[1].strip() for line in rows] == [
        "a fork alone",
        "rallypoint",
        "rallypoint --preload asyncio",
    ]
    assert "met" in rows[2] or "missed" in rows[2]
    assert list(tmp_path.glob("rallypoint-bench-*")) == []
