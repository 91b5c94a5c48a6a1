"""What a job leaves for programs: events, and the summary of how it went."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import Cluster
from tests.harness.one_agent import OneAgent, agent, ended
from tests.harness.plug_ins import offer_event_handler
from tests.harness.programs import run_program

FAILS_ONCE = """
import os, sys, time
tell("rank", os.environ["RANK"])
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        raise ValueError("out of cheese")
    time.sleep(600)
"""
SHOWN = """
mine = f"{os.environ['RANK']} of life {os.environ['TORCHELASTIC_RESTART_COUNT']}"
tell("shown", mine)
while f"shown {mine}\\n" not in open("stdout").read(): time.sleep(0.01)
"""
"""Behind the first line of FAILS_ONCE: until it has come through the relay."""
SLEEPS = "import time\ntell('up', 1)\ntime.sleep(600)\n"
SLOW = """
import os, time
class make:
    def __init__(self, argument): pass
    def handle(self, event): {handle}
    def close(self): {close}
"""
"""A handler of events, which may take long."""
STATUS = "torchelastic.worker.status."


def events_in(file: Path) -> list[dict[str, Any]]:
    text = file.read_text()
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def summary_in(file: Path) -> dict[str, Any]:
    assert os.listdir(file.parent).count(file.name) == 1
    assert not [name for name in os.listdir(file.parent) if name.startswith(f".{file.name}")]
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def run(home: Path, *options: str, program: str = "pass", code: int = 0) -> OneAgent:
    """A job that has ended with this exit code."""
    return ended(agent(home, *options, program=program), code)


def ended_with_handler(
    home: Path, text: str, *options: str, program: str = "pass"
) -> tuple[OneAgent, dict[str, Any]]:
    """A job that has succeeded although it told its events to this handler, and its summary."""
    packages, summary = home / "packages", home / "summary.json"
    offer_event_handler(packages, "slow", "slow_events", text)
    path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    told = ("--event-log-handler", "slow", "--json-summary", str(summary))
    env = {"PYTHONPATH": path}
    return ended(agent(home, *options, *told, program=program, env=env), 0), summary_in(summary)


def test_W18_events_of_a_job_that_restarts_have_times_ids_rounds_reasons_and_plain_numbers(
    tmp_path: Path,
) -> None:
    file = tmp_path / "events"
    before = time.time() * 1000
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-id", "r")
    run(tmp_path, *options, "--event-log-handler", f"jsonl:{file}", program=FAILS_ONCE)
    events = events_in(file)
    counts = Counter(
        (event["name"].removeprefix(STATUS), event["source"], event["metadata"]["round"])
        for event in events
        if event["name"].startswith(STATUS)
    )
    assert counts == {
        ("RENDEZVOUS", "AGENT", 0): 1,
        ("ASSIGN_WORKER_RANKS", "AGENT", 0): 1,
        ("START", "WORKER", 0): 2,
        ("FAILED", "WORKER", 0): 1,
        ("TERMINATED", "WORKER", 0): 1,
        ("RENDEZVOUS", "AGENT", 1): 1,
        ("ASSIGN_WORKER_RANKS", "AGENT", 1): 1,
        ("START", "WORKER", 1): 2,
        ("SUCCEEDED", "WORKER", 1): 2,
        ("SUCCEEDED", "AGENT", 1): 1,
    }
    assert {"rallypoint.round_ended", "rallypoint.restart"} <= {event["name"] for event in events}
    assert len({event["metadata"]["id"] for event in events}) == len(events)
    for event in events:
        assert before - 1000 <= event["timestamp"] <= time.time() * 1000 + 1000
        assert event["metadata"]["reason"]
        assert event["metadata"]["run_id"] == "r"
    (failed,) = (event["metadata"] for event in events if event["name"] == STATUS + "FAILED")
    assert failed["global_rank"] == 1
    assert failed["reason"] == "ValueError: out of cheese"
    assert json.loads(failed["raw_error"])["message"]["message"] == "ValueError: out of cheese"
    nested = json.loads(failed["metadata"])
    assert nested | {"worker_pid": 0} == {
        "group_world_size": 1,
        "entry_point": nested["entry_point"],
        "local_rank": 1,
        "role_rank": 1,
        "role_world_size": 2,
        "exit_code": 1,
        "worker_pid": 0,
    }
    assert failed["worker_id"] == str(nested["worker_pid"])
    for event in events:
        if event["name"] in (STATUS + "RENDEZVOUS", STATUS + "ASSIGN_WORKER_RANKS"):
            assert event["metadata"]["duration_ms"] >= 0


def test_the_file_of_events_is_complete_when_the_job_fails(tmp_path: Path) -> None:
    file = tmp_path / "events"
    handler = ("--event-log-handler", f"jsonl:{file}")
    run(tmp_path, *handler, program="raise SystemExit(3)", code=1)
    last = events_in(file)[-1]
    assert (last["name"], last["source"]) == (STATUS + "FAILED", "AGENT")
    assert "exited with code 3" in last["metadata"]["reason"]


def test_events_on_the_console_are_whole_lines_on_stderr(tmp_path: Path) -> None:
    one = run(tmp_path, "--event-log-handler", "console")
    names = [json.loads(line)["name"] for line in one.err.splitlines() if line[0] == "{"]
    assert names[-1] == STATUS + "SUCCEEDED"
    assert one.err.splitlines()[-1].startswith("rallypoint: job-")


def test_a_full_disk_fails_no_job_and_is_one_line(tmp_path: Path) -> None:
    one = run(tmp_path, "--event-log-handler", "jsonl:/dev/full")
    (said,) = (line for line in one.said if "events" in line)
    assert said.startswith("rallypoint: events were lost (jsonl:/dev/full): ")
    assert said.endswith("failed: No space left on device")


def test_a_handler_that_hangs_delays_no_heartbeat_and_what_it_missed_is_told(
    tmp_path: Path,
) -> None:
    """The lease is shorter than the job: a heartbeat that waited would end it."""
    text = SLOW.format(handle="time.sleep(600)", close="pass")
    program = "import time\ntime.sleep(4)\n"
    one, told = ended_with_handler(tmp_path, text, "--lease", "2", program=program)
    (said,) = (line for line in one.said if "events" in line)
    assert said.endswith("dropped, as it was too slow")
    assert not [line for line in one.said if "connection" in line or "lease" in line]
    assert told["events_lost"] > 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_A5_a_signal_while_a_handler_hangs_at_the_end_changes_no_exit_code(
    tmp_path: Path, number: int
) -> None:
    close = f"[os.kill(os.getpid(), {int(number)}) for _ in range(3)]; time.sleep(600)"
    one, told = ended_with_handler(tmp_path, SLOW.format(handle="pass", close=close))
    assert told["exit_code"] == 0
    assert "Traceback" not in one.err


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/stderr", "stdout"])
def test_a_summary_does_not_replace_what_the_job_prints(tmp_path: Path, name: str) -> None:
    """Here stdout and stderr go to files of these names."""
    one = run(tmp_path, "--json-summary", name, program="tell('started')", code=2)
    assert one.out == ""
    assert "this command's own output goes there" in one.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--event-log-handler", "nul"),
            "nul: there is no such handler; there are: console, jsonl:FILE, null; did you mean",
        ),
        (("--event-log-handler", "jsonl"), "--event-log-handler jsonl: needs a file: jsonl:FILE"),
        (
            ("--event-log-handler", "jsonl:/no/x"),
            "event log handler jsonl:/no/x: can't be written: No such file or directory",
        ),
        (
            ("--json-summary", "/no/x"),
            "--json-summary /no/x: can't be written: No such file or directory",
        ),
        (("--json-summary", "/dev/null"), "--json-summary /dev/null: exists and is not a regular"),
    ],
)
def test_who_can_not_be_told_is_refused_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    one = run(tmp_path, *options, program="tell('started')", code=2)
    assert one.out == ""
    (line,) = one.err.splitlines()
    assert said in line


def test_the_summary_of_a_job_that_restarts_has_its_rounds_their_phases_and_why(
    tmp_path: Path,
) -> None:
    file = tmp_path / "summary.json"
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--output", "prefix")
    program = FAILS_ONCE.replace("if os", SHOWN + "if os", 1)
    run(tmp_path, *options, "--json-summary", str(file), program=program)
    told = summary_in(file)
    assert (told["outcome"], told["exit_code"], told["schema"]) == ("succeeded", 0, 1)
    assert (told["restarts_used"], told["max_restarts"], told["cause"]) == (1, 1, None)
    first, second = told["rounds"]
    blame = f"rank 1 (node {told['node']}, local rank 1) exited with code 1"
    assert (first["why"], first["ended_by"], first["ended_why"]) == (
        "the first round",
        "failure",
        blame,
    )
    assert (second["why"], second["ended_by"]) == (blame, "succeeded")
    assert told["restarts"] == [{"round": 1, "kind": "failure", "reason": blame, "counted": True}]
    up = {"rendezvous", "spawn", "first_output"}
    assert set(first["phases"]) == up | {"detect", "stop"}
    assert set(second["phases"]) == up | {"stop"}
    assert all(0 <= took_s < told["elapsed_s"] for took_s in first["phases"].values())
    assert first["began_s"] < first["ended_s"] <= second["began_s"] < second["ended_s"]


def test_the_summary_tells_how_far_each_round_came(tmp_path: Path) -> None:
    program = """
    from rallypoint import worker
    import os, sys
    again = os.environ["RALLYPOINT_ROUND"] == "1"
    worker.progress(5 + again, total=10, loss=float("nan") if again else 0.25, tokens=700)
    sys.exit(not again)
    """
    file = tmp_path / "summary.json"
    options = ("--max-restarts", "1", "--json-summary", str(file))
    run(tmp_path, *options, program=textwrap.dedent(program))
    reached = [round_["progress"] for round_ in summary_in(file)["rounds"]]
    assert reached == [
        {"step": 5, "total": 10, "loss": 0.25, "tokens": 700},
        {"step": 6, "total": 10, "loss": None, "tokens": 700},
    ]
    goodput = summary_in(file)["goodput"]
    spent = [part["seconds"] for part in goodput["parts"]]
    assert sum(spent) == pytest.approx(goodput["wall_s"], rel=0.005)
    assert goodput["useful_s"] == pytest.approx(
        goodput["useful_share"] * goodput["wall_s"], rel=1e-3
    )
    assert (goodput["furthest_step"], goodput["lost_steps"], goodput["faults"]) == (6, 0, 1)
    assert goodput["mean_s_between_faults"] == goodput["wall_s"]
    causes = {(part["spent"], part["cause"]) for part in goodput["parts"]}
    assert {("useful steps", "work"), ("spawn", "start"), ("stopping", "failure")} <= causes


def test_a_phase_that_can_not_be_known_is_absent(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    files = str(tmp_path / "logs")
    words = ("--redirects", "3", "--log-dir", files, "--json-summary", str(file))
    run(tmp_path, *words, program="tell('up')")
    (only,) = summary_in(file)["rounds"]
    assert set(only["phases"]) == {"rendezvous", "spawn", "stop"}
    assert only["progress"] is None


@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGINT, "cancelled"), (signal.SIGTERM, "preempted")]
)
def test_a_job_that_a_signal_ends_leaves_its_summary(
    tmp_path: Path, number: signal.Signals, outcome: str
) -> None:
    file = tmp_path / "summary.json"
    file.write_text("of an older job")
    with agent(tmp_path, "--json-summary", str(file), program=SLEEPS) as one:
        one.wait_told("up")
        assert file.read_text() == "of an older job"
        one.send(number)
        assert one.wait() == 128 + number
    told = summary_in(file)
    assert (told["outcome"], told["exit_code"]) == (outcome, 128 + number)
    (only,) = told["rounds"]
    assert only["ended_by"] == outcome
    assert told["reason"] == only["ended_why"] != ""


def test_an_agent_inside_a_program_tells_its_events_too(tmp_path: Path) -> None:
    from tests.harness.own_agents import PopenAgent

    from rallypoint.elastic.agent.server import WorkerSpec, WorkerState

    file = tmp_path / "events"
    spec = WorkerSpec(
        "trainer", 2, entrypoint="true", max_restarts=0, event_log_handler=f"jsonl:{file}"
    )
    assert PopenAgent(spec).run().state is WorkerState.SUCCEEDED
    names = Counter(event["name"] for event in events_in(file))
    assert names[STATUS + "START"] == 2
    assert names[STATUS + "SUCCEEDED"] == 3
    assert {event["metadata"]["role"] for event in events_in(file)} == {"trainer"}


def test_A5_a_node_that_leaves_was_preempted_and_the_others_know_that_it_left(
    cluster: Cluster,
) -> None:
    files = {name: cluster.folder / f"{name}.json" for name in "ab"}
    """Not even for workers that exit with code 0 is that the job's success (A4)."""
    cluster.options["rdzv_conf"] = "last_call_timeout=600"
    cluster.order("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))", round=0)
    a, b = (
        cluster.agent(name, hosts=name == "a", nnodes="1:2", json_summary=str(file))
        for name, file in files.items()
    )
    cluster.wait_workers(2, round=0)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 128 + signal.SIGTERM
    cluster.wait_workers(1, round=1)
    cluster.end_well(a)
    left, stayed = summary_in(files["b"]), summary_in(files["a"])
    assert (left["outcome"], left["exit_code"]) == ("preempted", 143)
    assert len(left["rounds"]) == 1
    assert stayed["outcome"] == "succeeded"
    (again,) = stayed["restarts"]
    assert (again["round"], again["kind"], again["counted"]) == (1, "drain", False)
    assert "node b is leaving: it got SIGTERM" in again["reason"]
    assert [one["ended_by"] for one in stayed["rounds"]] == ["drain", "succeeded"]
    assert "detect" not in stayed["rounds"][0]["phases"]


LAUNCHES = """
import sys
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.metrics import MetricHandler, configure

class Kept(MetricHandler):
    def emit(self, data):
        print("METRIC", data.name, data.value, flush=True)

def work(number):
    return number + 1

if __name__ == "__main__":
    configure(Kept())
    config = LaunchConfig(1, 1, 2, role="trainer", event_log_handler="jsonl:" + sys.argv[1])
    print("RESULT", elastic_launch(config, work)(41))
"""


def test_a_program_that_launches_a_job_is_told_its_events_and_its_metrics(tmp_path: Path) -> None:
    script, file = tmp_path / "launches.py", tmp_path / "events"
    script.write_text(LAUNCHES)
    done = run_program([sys.executable, script, file], check=True)
    lines = done.stdout.splitlines()
    assert "RESULT {0: 42, 1: 42}" in lines
    assert "METRIC workers.trainer.run_success_no_retries 1" in lines
    assert "METRIC workers.trainer.succeeded 1" in lines
    events = events_in(file)
    assert (events[-1]["name"], events[-1]["source"]) == (STATUS + "SUCCEEDED", "AGENT")
    assert json.loads(events[-1]["metadata"]["metadata"])["entry_point"] == "work"


def test_A3_four_agents_agree_on_rounds_restarts_and_the_first_cause(cluster: Cluster) -> None:
    cluster.options |= {"nnodes": "3:4", "max_restarts": 1}
    files = {name: cluster.folder / f"{name}.json" for name in "abcd"}
    for name, file in files.items():
        cluster.options["rdzv_conf"] = "last_call_timeout=600"
        cluster.agent(name, 2, hosts=name == "a", json_summary=str(file))
    cluster.wait_workers(8, round=0)
    cluster.order("sys.exit(3)", round=0, rank=5)
    cluster.wait_workers(8, round=1)
    lost = cluster.all_agents[3]
    lost.kill()
    workers = cluster.wait_workers(6, round=2)
    culprit = next(worker for worker in workers if worker.rank == 1)
    cluster.order("os.kill(os.getpid(), signal.SIGSEGV)", round=2, rank=1)
    left = cluster.all_agents[:3]
    assert [one.wait_exit() for one in left] == [1, 1, 1]
    assert not files["d"].exists()
    a, b, c = (summary_in(files[name]) for name in "abc")
    same = ("outcome", "exit_code", "reason", "run_id", "round", "restarts_used", "restarts")
    assert a["goodput"] == b["goodput"] == c["goodput"]
    assert a["goodput"]["faults"] == 3
    assert a["goodput"]["useful_s"] is None  # Nobody has told of any step.
    for told in (b, c):
        assert [told[name] for name in same] == [a[name] for name in same]
        assert told["cause"] == a["cause"]
        assert told["collateral"] == a["collateral"]
        assert agreed(told) == agreed(a)
    assert a["cause"]["pid"] == culprit.pid
    assert (a["cause"]["rank"], a["cause"]["signal"]) == (1, "SIGSEGV")
    assert a["cause"] == left[1].verdict["cause"]
    assert [(again["round"], again["kind"], again["counted"]) for again in a["restarts"]] == [
        (1, "failure", True),
        (2, "loss", False),
    ]
    assert [(one["nodes"], one["workers"]) for one in a["rounds"]] == [(4, 8), (4, 8), (3, 6)]
    assert [one["ended_by"] for one in a["rounds"]] == ["failure", "loss", "failure"]
    for told in (a, b, c):
        assert all("detect" in one["phases"] for one in told["rounds"])


def agreed(told: dict[str, Any]) -> list[dict[str, Any]]:
    """What must be the same of each round on all nodes."""
    own = ("node_rank", "first_rank", "began_s", "ended_s", "phases")
    return [{k: v for k, v in one.items() if k not in own} for one in told["rounds"]]
