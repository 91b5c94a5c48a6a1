"""What a membership change leaves of the logs: torchrun erases those of the round before (P5)."""

from __future__ import annotations

from pathlib import Path

from tests.harness.cluster import Cluster, wait_until


def test_P5_a_membership_change_erases_no_logs(cluster: Cluster, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    cluster.options |= {"log_dir": str(logs), "redirects": 2}
    cluster.order("print('said in round', me[0], 'by', me[1], file=sys.stderr, flush=True)")
    [a] = cluster.running("a")
    b = cluster.agent("b")
    workers = cluster.wait_workers(2, round=1)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}

    def said() -> dict[str, str]:
        files = sorted(logs.glob("*/attempt_*/0/stderr.log"))
        return {file.read_text().strip(): file.parts[-3] for file in files}

    expected = {
        "said in round 0 by a": "attempt_0",
        "said in round 1 by a": "attempt_1",
        "said in round 1 by b": "attempt_1",
    }
    wait_until(lambda: len(said()) == len(expected), "all logs")
    cluster.end_well(a, b)
    assert said() == expected
