"""`rallypoint launch` over a real sshd: links that break in other ways, and what takes longer."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from tests.harness.cluster import wait_until
from tests.harness.limits import patience
from tests.harness.proc import children_of, command_line
from tests.ssh.launched import STEPS, TELL, code_of, told, wait_ran
from tests.ssh.servers import Hosts

STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
open("ran.%s.2" % os.environ["RALLYPOINT_NODE_ID"], "w").close()
while True:
    time.sleep(0.05)
"""
TWO = ("--hosts", "node-a,node-b")
THREE = ("--hosts", "node-a,node-b,node-c", "--nodes", "2:3", "--join-settle", "1")


def saved(hosts: Hosts) -> set[str]:
    return {path.name.removeprefix("saved.") for path in hosts.work.glob("saved.*")}


def clients(started: subprocess.Popen[bytes], name: str) -> list[int]:
    """The ssh clients of a launch that lead to that host."""
    return [pid for pid in children_of(started.pid) if f" {name} exec " in command_line(pid)]


def test_agents_run_on_without_the_terminal_and_are_drained_and_cancelled_as_it_says(
    hosts: Hosts,
) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    done = hosts.launch(*TWO, "--nodes", "1:2", "--detach", "train.py")
    assert done.returncode == 0, done.stderr
    advice = dict(re.findall(r"^    ([a-z][^:]*): (.*)$", done.stderr, re.M))
    wait_ran(hosts, 2, "node-a", "node-b")
    assert "node-a: pid" in done.stderr
    log = Path(re.findall(r"node-a: pid \d+, output in (.*)", done.stderr)[0])
    assert "round 0: node 0 of 2" in log.read_text()
    shell = ["sh", "-c"]
    drain = advice["have node-a save a checkpoint and leave"].replace("node-a", "node-b", 1)
    assert hosts.run([*shell, drain]).returncode == 0
    assert saved(hosts) == {"node-a", "node-b"}
    wait_ran(hosts, 1, "node-a")
    assert "round 1" in hosts.run([*shell, advice["see what it does"]]).stdout
    cancelled = hosts.run([*shell, advice["cancel it"]])
    assert cancelled.returncode in (0, 130), cancelled.stderr
    wait_until(lambda: len(list(log.parent.glob("*.json"))) == 2, "the summaries of both")
    verdict = hosts.run([*shell, advice["how it has ended"]])
    assert verdict.returncode == 130, verdict.stderr
    assert verdict.stdout.startswith("the job was cancelled")


def test_a_second_ctrl_c_waits_for_no_worker(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STUBBORN)
    started = hosts.start(*TWO, "--shutdown-timeout", "600", "train.py")
    wait_ran(hosts, 2, "node-a", "node-b")
    os.killpg(started.pid, signal.SIGINT)
    wait_until(lambda: hosts.log.count("cancelling the job") == 2, "the first one")
    assert code_of_pressed(started, hosts, "killing the workers") == 130, hosts.log
    wait_until(lambda: not hosts.below("node-a") + hosts.below("node-b"), "nothing to be left")


def test_a_third_ctrl_c_waits_for_no_host(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STUBBORN)
    started = hosts.start(*TWO, "train.py")
    wait_ran(hosts, 2, "node-a", "node-b")
    # They take no signal, and say nothing.
    agents = [hosts.agent(name) for name in ("node-a", "node-b")]
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    try:
        assert code_of_pressed(started, hosts, "not waited for") == 130, hosts.log
    finally:
        for agent in agents:
            os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not any(map(command_line, agents)), "the ends on the hosts to reap them")


def code_of_pressed(started: subprocess.Popen[bytes], hosts: Hosts, said: str) -> int:
    """Ctrl-C again and again, until that is said; the exit code."""

    def is_said() -> bool:
        if said not in hosts.log and started.poll() is None:
            os.killpg(started.pid, signal.SIGINT)
        return said in hosts.log

    wait_until(is_said, said)
    return code_of(started)


def test_sigterm_saves_a_checkpoint_on_all_hosts(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    started = hosts.start(*TWO, "train.py")
    wait_ran(hosts, 2, "node-a", "node-b")
    started.send_signal(signal.SIGTERM)
    assert code_of(started) == 143, hosts.log
    assert saved(hosts) == {"node-a", "node-b"}


def test_an_ssh_client_or_a_hosts_end_that_is_killed_costs_that_host(hosts: Hosts) -> None:
    for victim in ("client", "host's end"):
        hosts.empty()
        (hosts.work / "train.py").write_text(STEPS)
        started = hosts.start(*THREE, "train.py")
        wait_ran(hosts, 3, "node-a", "node-b", "node-c")
        agent = hosts.agent("node-b")
        if victim == "client":
            (pid,) = clients(started, "node-b")
        else:
            (pid,) = (p for p in hosts.below("node-b") if agent in children_of(p))
        os.kill(pid, signal.SIGKILL)
        wait_ran(hosts, 2, "node-a", "node-c")
        wait_until(lambda agent=agent: not command_line(agent), f"the agent to leave: {victim}")  # type: ignore[misc]
        assert {"node-a", "node-c"} <= saved(hosts)
        (hosts.work / "finish").touch()
        assert code_of(started) == 0, hosts.log
        assert "node-b: the link is broken" in hosts.log


def test_when_too_few_are_left_the_job_is_ended_at_once(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    started = hosts.start("--hosts", "node-a,node-b", "train.py")
    wait_ran(hosts, 2, "node-a", "node-b")
    os.kill(hosts.agent("node-b"), signal.SIGKILL)
    assert code_of(started) == 75, hosts.log
    assert "1 host left, and --nodes needs 2: ending the job" in hosts.log


def test_a_job_whose_record_lies_in_a_directory_outlives_its_first_host(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    where = ("--rdzv-backend", "file", "--rdzv-endpoint", str(hosts.work / "jobs"))
    (hosts.work / "jobs").mkdir()
    started = hosts.start(*THREE, *where, "train.py")
    wait_ran(hosts, 3, "node-a", "node-b", "node-c")
    os.kill(hosts.agent("node-a"), signal.SIGKILL)
    wait_ran(hosts, 2, "node-b", "node-c")
    (hosts.work / "finish").touch()
    assert code_of(started) == 0, hosts.log


def test_a_reader_that_goes_away_is_told_once_and_the_job_goes_on(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    reader, writer = os.pipe()
    started = subprocess.Popen(
        hosts.command(*TWO, "train.py"),
        cwd=hosts.work,
        env=hosts.env,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    try:
        wait_ran(hosts, 2, "node-a", "node-b")
        assert os.read(reader, 10)
        os.close(reader)
        assert started.stderr is not None
        lines = iter(started.stderr.readline, b"")
        assert any(b"nobody reads stdout any more" in line for line in lines)
        (hosts.work / "finish").touch()
        _, rest = started.communicate(timeout=patience(60))
        assert started.returncode == 0, rest
        assert b"nobody reads" not in rest
    finally:
        started.kill()
        started.wait()


def test_a_login_shell_may_talk(hosts: Hosts, tmp_path: Path) -> None:
    (hosts.work / "train.py").write_text(TELL)
    noisy = tmp_path / "noisy"
    noisy.write_text('#!/bin/sh\necho welcome; echo careful >&2; exec "$@"\n')
    noisy.chmod(0o755)
    done = hosts.launch(*TWO, "--ssh", f"{noisy} {hosts.ssh}", "train.py")
    assert done.returncode == 0, done.stderr
    assert len(told(done.stdout)) == 2
    assert "welcome" not in done.stdout


def test_spare_hosts_take_the_place_of_lost_ones(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    started = hosts.start("--hosts", "node-a,node-b,node-c", "--spares", "1", "train.py")
    wait_until(lambda: len(list(hosts.work.glob("ran.*.2"))) == 2, "two of three to work")
    assert "starts on 3 hosts, of which 1 stands by" in hosts.log
    first = {path.name.split(".")[1] for path in hosts.work.glob("ran.*.2")}
    (lost,) = first - {"node-a"} or {"none"}
    (spare,) = {"node-a", "node-b", "node-c"} - first
    os.kill(hosts.agent(lost), signal.SIGKILL)
    wait_ran(hosts, 2, "node-a", spare)
    (hosts.work / "finish").touch()
    assert code_of(started) == 0, hosts.log
