"""What an agent tells of one and the same job, beside torchrun: events, and metrics."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.compat.launches import RALLYPOINT, TORCHRUN, plain_environ
from tests.compat.recordings import Recordings
from tests.harness.programs import run_program

STATUS = "torchelastic.worker.status."
WORKER = """
import os, sys, time
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if first and os.environ["RANK"] == "0":
    time.sleep(60)
sys.exit(3 if first else 0)
"""
MEASURED = """
import sys
from {package} import MetricHandler, configure
class Kept(MetricHandler):
    def emit(self, data):
        print("METRIC", data.group_name, data.name, data.value, flush=True)
configure(Kept())
{run}
"""
TORCHS = """
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
config = LaunchConfig(
    1, 1, 2, run_id="r", role="default", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
    max_restarts=int(sys.argv[2]), monitor_interval=0.01,
)
try:
    elastic_launch(config, sys.executable)(sys.argv[1])
except ChildFailedError:
    pass
"""
OURS = """
from rallypoint.cli.main import main
options = ["--nproc-per-node", "2", "--max-restarts", sys.argv[2], "--quiet"]
main(["run", *options, sys.argv[1]])
"""
METHODS = ("SimpleElasticAgent.", "LocalElasticAgent.")
# Ranks come with the rendezvous, and nothing polls.
NOT_CALLED = ("SimpleElasticAgent._assign_worker_ranks.", "LocalElasticAgent._monitor_workers.")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(WORKER)
    return path


def events_of(command: Sequence[str], script: Path) -> list[dict[str, Any]]:
    options = ["--nproc-per-node", "2", "--max-restarts", "1", "--event-log-handler", "console"]
    words = [*command, *options, "--rdzv-id", "r", str(script)]
    done = run_program(words, env=plain_environ(), timeout=300, check=True)
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith('{"name"')]
    events = [event for event in told if event["name"].startswith(STATUS)]
    for event in events:
        event["metadata"]["metadata"] = json.loads(event["metadata"]["metadata"])
    return events


def torchruns_events(python: str, script: Path) -> list[dict[str, Any]]:
    """With the names of the metadata, whose values differ from run to run. Sorted: two workers may
    end in any order."""
    events = events_of([python, *TORCHRUN], script)
    for event in events:
        event["metadata"] = dict.fromkeys(event["metadata"]) | {
            "metadata": event["metadata"]["metadata"]
        }
    return sorted(events, key=json.dumps)


def test_events_have_torchs_names_sources_and_keys(
    script: Path, torch_said: Recordings, torch_python: str
) -> None:
    torchs = torch_said("telemetry", "events", lambda: torchruns_events(torch_python, script))
    ours = events_of(RALLYPOINT, script)
    assert torchs
    for event in torchs:
        mine = next(e for e in ours if (e["name"], e["source"]) == (event["name"], event["source"]))
        assert set(event["metadata"]) == set(mine["metadata"]) - {"id", "node", "round", "reason"}
        nested, own = event["metadata"]["metadata"], mine["metadata"]["metadata"]
        assert set(nested) == set(own)
        assert nested["entry_point"] == own["entry_point"]
        for key, value in nested.items():
            assert not isinstance(own[key], list), f"{key}: torchrun wraps {value}"
        assert event["timestamp"] == 0 < mine["timestamp"]
    # Torchrun tells of workers' ends in the last round only, and not of those that it restarted.
    assert Counter(e["name"] for e in ours) - Counter(e["name"] for e in torchs) == {
        STATUS + "FAILED": 1,
        STATUS + "TERMINATED": 1,
    }
    assert not Counter(e["name"] for e in torchs) - Counter(e["name"] for e in ours)


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_metrics_have_torchs_names_and_end_with_its_values(
    script: Path, max_restarts: int, torch_said: Recordings, torch_python: str
) -> None:
    def ask() -> object:
        found = metrics_of(
            torch_python, "torch.distributed.elastic.metrics", TORCHS, script, max_restarts
        )
        found.pop("workers.default.healthy", None)  # Told if a look comes before the first failure.
        return found | {name: "" for name in found if name.startswith(METHODS)}  # how long

    torchs = torch_said("telemetry", f"metrics, {max_restarts} restarts", ask)
    ours = metrics_of(sys.executable, "rallypoint.elastic.metrics", OURS, script, max_restarts)
    named = {name for name in torchs if not name.startswith(METHODS)}
    assert named >= {"workers.default.flakiness", "workers.default.remaining_restarts"}
    assert {name: ours[name] for name in named} == {name: torchs[name] for name in named}
    timed = {n for n in torchs if n.startswith(METHODS) and not n.startswith(NOT_CALLED)}
    assert timed == {n for n in ours if n.startswith(METHODS)}
    more = {n for n in ours if not n.startswith(("phase.", *METHODS))} - named
    assert more <= {"workers.default.healthy", "workers.default.stopped"}
    assert "phase.spawn.duration.ms" in ours


def metrics_of(
    python: str, package: str, run: str, script: Path, max_restarts: int
) -> dict[str, str]:
    """The last value of each."""
    measured = MEASURED.format(package=package, run=run)
    words: list[str | Path] = [python, "-c", measured, script, str(max_restarts)]
    done = run_program(words, env=plain_environ(), timeout=300)
    told = [line.split(" ") for line in done.stdout.splitlines() if line.startswith("METRIC ")]
    assert told, done.stderr
    assert {group for _, group, _, _ in told} == {"torchelastic"}
    return {name: value for _, _, name, value in told}
