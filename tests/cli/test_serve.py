"""`rallypoint serve`: one coordinator outside of any job, with real agents."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.harness.cluster import LIMIT_S, AgentProcess, Cluster, Option, wait_until
from tests.harness.one_agent import ended
from tests.harness.own_program import program
from tests.harness.prepared import processes

SERVE = (sys.executable, "-m", "rallypoint", "serve")


class Serve:
    """A coordinator at the cluster's endpoint, ended with SIGTERM."""

    def __init__(self, cluster: Cluster, *options: str) -> None:
        argv = [*SERVE, "--host", "127.0.0.1", "--port", str(cluster.port), *options]
        self.process = AgentProcess("serve", argv, cluster.environ(), cluster.folder)
        self.said("serving on")

    def said(self, text: str) -> str:
        """The first line with this text, which may have been said already."""

        def find() -> str | None:
            lines = self.process.stderr_lines
            return next((line for line in lines if text in line), None)

        line = wait_until(find, f"{text!r} in what serve says")
        assert line is not None
        return line

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, *_: object) -> None:
        print("--- serve", *self.process.stderr_lines, sep="\n")
        if self.process.process.poll() is None:
            self.process.signal(signal.SIGTERM)
            assert self.process.wait_exit() == 128 + signal.SIGTERM


def wait_started(agent: AgentProcess, round_: int) -> None:
    wait_until(lambda: agent.workers(round_), f"a worker of {agent.name} in round {round_}")


def started(cluster: Cluster, name: str, **options: Any) -> AgentProcess:
    """An agent that hosts nothing, in its first round."""
    agent = cluster.agent(name, hosts=False, **options)
    wait_started(agent, 0)
    return agent


@pytest.mark.executed
def test_two_jobs_side_by_side_and_a_drain_disturbs_only_its_own(tmp_path: Path) -> None:
    together = "last_call_timeout=60"  # the maximum completes the round, however late b comes
    with Cluster(tmp_path, rdzv_conf=together) as cluster, Serve(cluster) as serve:
        a, b = (cluster.agent(name, hosts=False, rdzv_id="one") for name in "ab")
        c = cluster.agent("c", hosts=False, rdzv_id="two", nnodes="1")
        for agent in (a, b, c):
            wait_started(agent, 0)
        [worker] = c.workers()
        assert worker.env["WORLD_SIZE"] == "1"
        a.signal(signal.SIGTERM)
        assert a.wait_exit() == 128 + signal.SIGTERM
        wait_started(b, 1)
        assert b.workers(1)[0].env["TORCHELASTIC_RESTART_COUNT"] == "0"
        serve.said("job one: node a is leaving")
        assert worker.is_alive
        cluster.end_well(b, c)
        assert [w.pid for w in c.workers()] == [worker.pid]
        serve.said("job two: job succeeded")


def test_A5_draining_the_first_node_of_a_served_job_promotes_one_that_stands_by(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="1") as cluster, Serve(cluster) as serve:
        a = started(cluster, "a")
        b = cluster.agent("b", hosts=False)
        serve.said("job job: node b joined")
        a.signal(signal.SIGTERM)
        assert a.wait_exit() == 128 + signal.SIGTERM
        wait_started(b, 1)
        cluster.end_well(b)


def test_R5_a_failed_job_begins_anew_and_one_that_succeeded_does_not(tmp_path: Path) -> None:
    with Cluster(tmp_path, nnodes="1") as cluster, Serve(cluster) as serve:
        first = started(cluster, "a")
        [worker] = first.workers()
        cluster.order(f"if os.getpid() == {worker.pid}: sys.exit(3)")
        assert first.wait_exit() == 1
        second = started(cluster, "a")
        cluster.end_well(second)
        late = cluster.agent("late", hosts=False)
        assert late.wait_exit() == 0
        assert late.workers() == []
        assert late.verdict["outcome"] == "succeeded"
        assert late.verdict["ended_s_ago"] >= 0
        assert second.verdict["ended_s_ago"] is None
        serve.said("job job: job failed")


def test_L7_a_job_that_begins_anew_waits_for_the_workers_of_its_last_life(tmp_path: Path) -> None:
    with Cluster(tmp_path, nnodes="1") as cluster, Serve(cluster) as serve:
        first = started(cluster, "a")
        [worker] = first.workers()
        cluster.order("signal.signal(signal.SIGINT, signal.SIG_IGN); os.write(1, b'deaf\\n')")
        wait_until(lambda: "deaf" in first.stdout_lines, "a worker that ignores SIGINT")
        first.signal(signal.SIGINT)
        serve.said("job job: job cancelled")
        second = cluster.agent("b", hosts=False)
        second.wait_event("waiting", "1 node to stop")
        assert second.workers() == []
        os.kill(worker.pid, signal.SIGKILL)
        wait_started(second, 0)
        assert first.wait_exit() == 128 + signal.SIGINT
        cluster.end_well(second)


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_R5_a_node_that_was_lost_comes_back_to_a_dead_job_and_starts_nothing(
    tmp_path: Path, end: str
) -> None:
    options: dict[str, Option] = {"nnodes": "1:2", "lease": 2, "reconnect_timeout": 600}
    with Cluster(tmp_path, **options, rdzv_conf="last_call_timeout=60") as cluster, Serve(cluster):
        a, b = (cluster.agent(name, hosts=False) for name in "ab")
        for agent in (a, b):
            wait_started(agent, 0)
        b.pause()
        wait_started(a, 1)
        if end == "failed":
            cluster.order("if os.environ['RALLYPOINT_ROUND'] == '1': sys.exit(3)")
        else:
            a.signal(signal.SIGINT)
        code = 1 if end == "failed" else 128 + signal.SIGINT
        assert a.wait_exit() == code
        b.resume()
        assert b.wait_exit() == code
        assert b.verdict["outcome"] == a.verdict["outcome"] == end
        assert b.verdict["reason"] == a.verdict["reason"]
        assert [worker.round for worker in b.workers()] == [0]
        assert not any(worker.is_alive for worker in cluster.workers())


@pytest.mark.parametrize("quiet", [False, True])
def test_R5_who_comes_after_the_success_says_that_nothing_was_started(
    tmp_path: Path, quiet: bool
) -> None:
    options: dict[str, Option] = {"nnodes": "1", "log_format": "text", "quiet": quiet}
    with Cluster(tmp_path, **options) as cluster, Serve(cluster):
        first = started(cluster, "a")
        cluster.end_well(first)
        again = cluster.agent("a", hosts=False)
        assert again.wait_exit() == 0
        assert again.workers() == []
        said, advice = again.stderr_lines[-2:]
        assert re.fullmatch(
            r"rallypoint: nothing was started: job job succeeded \d+ s ago on this coordinator",
            said,
        ), said
        assert advice.startswith("    what to do: give another --rdzv-id to run it again")
        assert not any("nothing was started" in line for line in first.stderr_lines)


def test_R5_R7_who_comes_after_the_success_with_other_settings_is_told_of_the_success(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="1", log_format="text") as cluster, Serve(cluster):
        first = started(cluster, "a")
        other = cluster.agent("b", hosts=False, max_restarts=2)
        assert other.wait_exit() == 2, "while the job runs its settings are the job's"
        cluster.end_well(first)
        again = cluster.agent("a", hosts=False, max_restarts=2, nnodes="1:2", lease=3)
        assert again.wait_exit() == 0, again.stderr_lines
        assert again.workers() == []
        assert any("nothing was started: job job succeeded" in line for line in again.stderr_lines)


def test_R5_R7_a_job_whose_agents_were_all_killed_begins_anew_with_other_settings(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, nnodes="1") as cluster, Serve(cluster) as serve:
        first = started(cluster, "a")
        first.kill()
        serve.said("node a was lost")
        other = started(cluster, "b", max_restarts=2)
        [before], [after] = first.workers(), other.workers()
        numbers = [int(worker.env["RALLYPOINT_INCARNATION"]) for worker in (before, after)]
        assert numbers == sorted(set(numbers))
        cluster.end_well(other)
        assert other.verdict["max_restarts"] == 2


def test_A7_a_run_that_starts_nothing_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with Cluster(tmp_path, nnodes="1", exit_code="already-succeeded=3") as cluster, Serve(cluster):
        first = started(cluster, "a")
        cluster.end_well(first)
        assert cluster.agent("a", hosts=False).wait_exit() == 3
        assert cluster.agent("a", hosts=False, exit_code="success=4").wait_exit() == 4


LAUNCH_TWICE = """
def work():
    tell("work")
    return 1
---
conf = {"is_host": False, "insecure": True}
config = LaunchConfig(1, 1, 1, run_id="job", rdzv_endpoint=sys.argv[1], rdzv_configs=conf)
for _ in range(2):
    tell("got", elastic_launch(config, work)())
"""


def test_R5_a_program_that_launches_a_job_that_has_succeeded_is_warned(tmp_path: Path) -> None:
    """Its results are those of nobody."""
    with Cluster(tmp_path) as cluster, Serve(cluster, "--insecure"):
        run = ended(program(tmp_path / "program", LAUNCH_TWICE, f"127.0.0.1:{cluster.port}"), 0)
        assert run.told("got") == ["{0: 1}", "{}"]
        assert run.told("work") == [""]
        (line,) = [line for line in run.err.splitlines() if "nothing was started" in line]
        assert "job job succeeded" in line
        assert "give another run_id" in line


@pytest.mark.parametrize("nnodes", ["1", "2"])
def test_a_job_that_nobody_named_is_refused(tmp_path: Path, nnodes: str) -> None:
    """One that had the same default name would be taken for it."""
    with Cluster(tmp_path, nnodes=nnodes, rdzv_id=None) as cluster, Serve(cluster) as serve:
        a = cluster.agent("a", hosts=False)
        assert a.wait_exit() == 2
        (line,) = a.lines
        assert "give every node of this job the same --rdzv-id" in line
        assert "--rdzv-id" in line
        assert a.workers() == []
        serve.said("give every node of this job the same --rdzv-id")
        named = started(cluster, "a", rdzv_id="job", nnodes="1")
        cluster.end_well(named)


def test_F2_without_their_coordinator_agents_stop_their_workers(tmp_path: Path) -> None:
    with Cluster(tmp_path, nnodes="2", lease=2) as cluster, Serve(cluster) as serve:
        agents = [cluster.agent(name, hosts=False) for name in "ab"]
        workers = cluster.wait_workers(2)
        serve.process.kill()
        for agent in agents:
            assert agent.wait_exit() == 75
            agent.wait_event("fenced")
        assert not any(worker.is_alive for worker in workers)


def test_F2_agents_that_outlive_their_coordinator_begin_anew_with_the_next(tmp_path: Path) -> None:
    """With `--reconnect-timeout` they look for it when the lease, and their workers, are gone."""
    options: dict[str, Option] = {"nnodes": "2", "lease": 2, "reconnect_timeout": 600}
    with Cluster(tmp_path, **options) as cluster:
        with Serve(cluster) as lost:
            agents = [cluster.agent(name, hosts=False) for name in "ab"]
            first = cluster.wait_workers(2)
            lost.process.kill()
        for agent in agents:
            agent.wait_event("fenced")
        wait_until(lambda: not any(worker.is_alive for worker in first), "the workers to die")
        with socket.create_server(("127.0.0.1", cluster.port)) as listener:
            listener.settimeout(LIMIT_S)
            for _ in range(3 * len(agents)):  # without the option the first failure is the last
                listener.accept()[0].close()
        with Serve(cluster) as serve:
            wait_until(lambda: len(cluster.workers()) == 4, "two more workers")
            [one, other] = cluster.workers()[2:]
            assert one.env["WORLD_SIZE"] == other.env["WORLD_SIZE"] == "2"
            cluster.end_well(*agents)
            serve.said("job job: job succeeded")


def test_lines_as_json(tmp_path: Path) -> None:
    with Cluster(tmp_path, nnodes="1") as cluster:
        with Serve(cluster, "--log-format", "json", "--insecure") as serve:
            a = started(cluster, "a", insecure=True)
            cluster.end_well(a)
        told = [json.loads(line) for line in serve.process.stderr_lines]
        assert told[0]["event"] == "serving"
        assert "--insecure" in told[0]["message"]
        [joined] = [line for line in told if line["event"] == "node_joined"]
        assert (joined["job"], joined["node"]) == ("job", "a")
        assert "verdict" in [line["event"] for line in told]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_number_is_the_exit_code(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Cluster(tmp_path) as cluster, Serve(cluster) as serve:
        line = serve.said("serving on")
        assert f"127.0.0.1:{cluster.port} (token {cluster.home}" in line
        serve.process.signal(number)
        assert serve.process.wait_exit() == 128 + number
        serve.said(f"got {number.name}")


def test_quiet_says_nothing(tmp_path: Path) -> None:
    with Cluster(tmp_path, nnodes="1", lease=2) as cluster:
        argv = [*SERVE, "--host", "127.0.0.1", "--port", str(cluster.port), "--quiet"]
        serve = AgentProcess("serve", argv, cluster.environ(), cluster.folder)
        try:
            a = started(cluster, "a")
            cluster.end_well(a)
        finally:
            serve.signal(signal.SIGTERM)
            assert serve.wait_exit() == 128 + signal.SIGTERM
        assert serve.stderr_lines == []


def refused(tmp_path: Path, words: Sequence[str]) -> str:
    """The one line with which a command line is refused."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("ab" * 32)
    done = processes.run(
        [*SERVE, "--token-file", str(token), *words],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2, done
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    return line


def test_bad_command_lines_are_refused_in_one_line(tmp_path: Path) -> None:
    assert "--host" in refused(tmp_path, [])
    assert "192.0.2.1 is not an address of this machine" in refused(
        tmp_path, ["--host", "192.0.2.1"]
    )
    assert "0..65535" in refused(tmp_path, ["--host", "::1", "--port", "65536"])
    empty = refused(tmp_path, ["--host", "::1", "--data-dir", ""])
    assert "--data-dir is empty, as by a shell variable that is not set" in empty
    alone = refused(tmp_path, ["--host", "::1", "--candidate"])
    assert "--candidate: add --data-dir DIR" in alone
    assert "--hold: add --data-dir DIR" in refused(tmp_path, ["--host", "::1", "--hold", "20"])
    kept = ["--host", "::1", "--data-dir", "jobs"]
    assert "--hold 1: must be 2 to 300" in refused(tmp_path, [*kept, "--hold", "1"])
    assert "--port much: much is not a valid port" in refused(
        tmp_path, ["--host", "::1", "--port", "much"]
    )
    assert "without a port" in refused(tmp_path, ["--host", "10.0.0.1:29400"])
    assert "--insecure" in refused(tmp_path, ["--host", "::1", "--insecure"])
    assert "--standalone: unknown option" in refused(tmp_path, ["--host", "::1", "--standalone"])
    assert r"--host '\xff': needs a host name" in refused(tmp_path, ["--host", "\udcff"])
    assert r"'\xff\n': unexpected; it takes options only" in refused(
        tmp_path, ["--host", "::1", "\udcff\n"]
    )
    mistyped = str(tmp_path / "tokem")
    line = refused(tmp_path, ["--host", "::1", "--port", "0", "--token-file", mistyped])
    assert f"--token-file {mistyped}: there is no such file" in line
    assert not Path(mistyped).exists()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(tmp_path, ["--host", "127.0.0.1", "--port", port])
    assert f"127.0.0.1:{port} is in use already" in line


def test_help_is_for_people() -> None:
    done = subprocess.run([*SERVE, "--help"], capture_output=True, text=True, check=True)
    for word in ("--host ADDR", "--port PORT", "--token-file FILE", "--rdzv-endpoint", "143"):
        assert word in done.stdout
