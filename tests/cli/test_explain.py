"""`rallypoint run --explain`: what would happen, and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.command_line import MACHINE

from rallypoint.agent.environ import tracked_run_id
from rallypoint.cli.main import main
from rallypoint.cli.options import parse_run
from rallypoint.cli.parser import ExplainRequested


def explained(line: str, **environ: str) -> dict[str, str]:
    """By topic, without the breaks between lines."""
    with pytest.raises(ExplainRequested) as caught:
        parse_run(["--explain", *line.split(), "train.py"], environ, MACHINE)
    topics: dict[str, str] = {}
    first, *lines = caught.value.args[0]
    assert first == "rallypoint run would start: /usr/bin/python3 -u train.py"
    for each in lines:
        assert len(each) < 80
        topic, text = each[:20].strip(), each[20:].strip()
        if topic:
            topics[topic] = text
        else:
            last = next(reversed(topics))
            topics[last] += f" {text}"
    return topics


@pytest.mark.parametrize(
    ("line", "environ", "topic", "says"),
    [
        ("", {}, "nodes", "this one alone [default]"),
        ("", {"PET_RDZV_ID": "digits"}, "job", "digits [PET_RDZV_ID=digits]"),
        ("--rdzv-id a", {"PET_RDZV_ID": "digits"}, "job", "a [--rdzv-id a]"),
        ("", {}, "a worker fails", "the job fails [default]"),
        ("", {}, "progress", "reported by rallypoint.worker.progress [default]"),
        (
            "",
            {"RALLYPOINT_PROGRESS_PATTERN": "megatron"},
            "progress",
            (
                "read in the workers' output, which passes the relay, as megatron prints it; or"
                " reported by rallypoint.worker.progress [RALLYPOINT_PROGRESS_PATTERN=megatron]"
            ),
        ),
        (
            "--progress-pattern (?P<step>[0-9]+)/",
            {},
            "progress",
            (
                "read in the workers' output, which passes the relay, by (?P<step>[0-9]+)/; or"
                " reported by rallypoint.worker.progress [--progress-pattern (?P<step>[0-9]+)/]"
            ),
        ),
        (
            "--max-restarts 3 --restart-window 60 --no-restart-on 2",
            {},
            "a worker fails",
            (
                "all workers restart, 3 times in 60 s; then the job fails; at once if it ends "
                "with 2"
                " [--max-restarts 3, --restart-window 60, --no-restart-on 2]"
            ),
        ),
        (
            "--max-restarts 9 --max-no-progress 3",
            {},
            "a worker fails",
            (
                "all workers restart, 9 times; then the job fails, or after 3 equal failures in "
                "a row"
                " without progress (failures that are not charged, as on a machine that is held"
                " back, do not count) [--max-restarts 9, --max-no-progress 3]"
            ),
        ),
        (
            "--history told.jsonl",
            {},
            "history",
            "the node that hosts the job appends its events to told.jsonl [--history told.jsonl]",
        ),
        (
            "",
            {"RALLYPOINT_HISTORY": "told/"},
            "history",
            (
                "the node that hosts the job appends its events to a file in told/ with the job's"
                " name [RALLYPOINT_HISTORY=told/]"
            ),
        ),
        (
            "--hang-timeout 300,start=1800",
            {},
            "a worker hangs",
            (
                "it has failed after 300 s without progress, start: 1800 s [--hang-timeout"
                " 300,start=1800]"
            ),
        ),
        (
            "--export-run-id mlflow,wandb --rdzv-id a/b",
            {},
            "experiment",
            (
                f"all rounds are run {tracked_run_id('a/b')} of mlflow, wandb [--export-run-id"
                " mlflow,wandb]"
            ),
        ),
        (
            "--signal-scope worker",
            {},
            "workers stop",
            (
                "25 s from SIGTERM to SIGKILL when the job ends, 5 s when it restarts; child"
                " processes of a worker get the signal when the worker has ended [--signal-scope"
                " worker]"
            ),
        ),
        (
            "--nnodes 2:5 --spares 1 --rdzv-endpoint node-a",
            {},
            "nodes",
            (
                "2 to 4 work, and any more stand by; the first round waits for 4, or 30 s once"
                " there are 2 [--nnodes 2:5, --spares 1]"
            ),
        ),
        (
            "--nnodes 2 --rdzv-endpoint node-a --rdzv-conf join_timeout=60",
            {},
            "too few nodes",
            "fewer than 2: the job ends after 60 s [--rdzv-conf join_timeout=60]",
        ),
        (
            "--nnodes 2 --rdzv-endpoint node-a",
            {},
            "rendezvous",
            (
                "at node-a:29400: the node that can bind it hosts the job, which ends if that node"
                " is lost [--rdzv-endpoint node-a]"
            ),
        ),
        (
            "--nnodes 2 --rdzv-backend file --rdzv-endpoint d --rdzv-id a",
            {},
            "rendezvous",
            (
                "any node leads the job, and another takes over from it; its record is in the"
                " directory /where/i/am/d; a leader may act 10 s without it [--rdzv-backend file,"
                " --rdzv-endpoint d]"
            ),
        ),
        (
            "--nnodes 2 --node-rank 1 --master-addr n1",
            {},
            "ranks",
            "fixed: this is node 1 [--node-rank 1]",
        ),
        (
            "--nnodes 2 --rdzv-endpoint node-a",
            {"RALLYPOINT_TOPOLOGY": "rack-1"},
            "ranks",
            (
                "by topology (here rack-1), then by the node's name, n2 before n10; nodes"
                " that stay keep their rank, and a replacement takes that of a lost node"
                " [RALLYPOINT_TOPOLOGY=rack-1]"
            ),
        ),
        (
            "--nnodes 4 --rdzv-endpoint node-a --world-multiple-of 8",
            {},
            "workers in all",
            "a multiple of 8; surplus nodes stand by [--world-multiple-of 8]",
        ),
        (
            "--rdzv-backend theirs --rdzv-endpoint x",
            {},
            "rendezvous",
            "by the backend theirs at x [--rdzv-backend theirs, --rdzv-endpoint x]",
        ),
        (
            "--env-style jax,mpi",
            {},
            "variables",
            "workers also have the variables of jax, mpi [--env-style jax,mpi]",
        ),
        (
            "--keep-env PMI_RANK",
            {"SLURM_PROCID": "0", "PMI_RANK": "2", "SLURM_JOB_ID": "7"},
            "environment",
            "workers do not get variables of this agent's task: SLURM_PROCID [--keep-env PMI_RANK]",
        ),
    ],
)
def test_each_value_is_explained_with_where_it_comes_from(
    line: str, environ: dict[str, str], topic: str, says: str
) -> None:
    assert explained(line, **environ)[topic] == says


def test_a_history_that_nobody_writes_is_not_explained() -> None:
    assert "history" not in explained("")


def test_the_token_itself_is_never_shown() -> None:
    environ = {"RALLYPOINT_TOKEN": "the-secret-itself-of-32-characters"}
    topics = explained("--nnodes 2 --rdzv-endpoint node-a", **environ)
    assert topics["token"] == "RALLYPOINT_TOKEN [default]"
    assert "secret" not in str(topics)


def test_nothing_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert main(["run", "--explain", str(script)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("rallypoint run would start: ")
    assert err == ""
    assert list(tmp_path.iterdir()) == [script]
