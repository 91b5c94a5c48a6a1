"""`rallypoint launch` over a real sshd."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from tests.harness.cluster import wait_until
from tests.harness.proc import command_line, descendants
from tests.ssh.launched import STEPS, TELL, code_of, told, wait_ran
from tests.ssh.servers import Hosts


@pytest.mark.quick
def test_a_hostfile_is_one_job_with_one_output(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(TELL)
    (hosts.work / "hosts.txt").write_text("# two workers on the first\nnode-a slots=2\nnode-b:1\n")
    done = hosts.launch(
        *("--hostfile", "hosts.txt", "--rdzv-id", "digits", "-x", "COLOUR=blue", "train.py"),
        env={"PET_MAX_RESTARTS": "2"},
    )
    assert done.returncode == 0, done.stderr
    assert [each["RALLYPOINT_NODE_ID"] for each in told(done.stdout)] == ["node-a"] * 2 + ["node-b"]
    assert {each["WORLD_SIZE"] for each in told(done.stdout)} == {"3"}
    assert {each["COLOUR"] for each in told(done.stdout)} == {"blue"}
    assert {each["cwd"] for each in told(done.stdout)} == {str(hosts.work)}
    assert {each["RALLYPOINT_RUN_ID"] for each in told(done.stdout)} == {"digits"}
    # Each line says once where it comes from.
    assert all(re.match(r"\[default \d\] \{", line) for line in done.stdout.splitlines())
    assert "node-a: [" not in done.stdout
    assert re.search(r"^rallypoint [\d:]{8} node-b: round 0: node 1 of 2", done.stderr, re.M)
    assert done.stderr.count("job digits succeeded") == 1
    assert "job digits starts on 2 hosts; the nodes connect at 127.0.0.2:" in done.stderr


@pytest.mark.quick
def test_hosts_that_cant_be_reached_are_named_and_the_job_goes_on_with_enough(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(TELL)
    listed = ("--hosts", "node-a,gone,node-b,node-c", "--exclude", "node-c")
    done = hosts.launch(*listed, "--nodes", "2:3", "train.py")
    assert done.returncode == 0, done.stderr
    assert [each["RALLYPOINT_NODE_ID"] for each in told(done.stdout)] == ["node-a", "node-b"]
    line = r"gone: can't be reached: .*Connection refused \(ssh exited with 255\)$"
    assert re.search(line, done.stderr, re.M)
    done = hosts.launch(*listed, "train.py")
    assert done.returncode == 75
    assert done.stdout == ""
    assert "2 hosts can take part, and --nodes needs 3; without gone" in done.stderr


def test_what_a_host_lacks_is_one_line_for_each(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(TELL)
    two = ("--hosts", "node-a,node-b")
    for words, said in (
        ((*two, "--python", "/no/python", "train.py"), "/no/python: No such file or directory"),
        ((*two, "--chdir", "/no/where", "train.py"), "the directory /no/where can't be entered"),
        ((*two, "other.py"), "other.py: no such file in "),
    ):
        done = hosts.launch(*words)
        assert (done.returncode, done.stdout) == (2, "")
        lines = done.stderr.splitlines()
        assert len(lines) == 3, done.stderr
        assert sum(said in line and "give --" in line for line in lines) == 2
        assert sum("node-b: " in line for line in lines) == 1


def test_a_host_that_is_lost_does_not_make_a_healed_job_fail(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    words = ("--join-settle", "1", "train.py")
    started = hosts.start("--hosts", "node-a,node-b,node-c", "--nodes", "2:3", *words)
    wait_ran(hosts, 3, "node-a", "node-b", "node-c")
    os.kill(hosts.agent("node-b"), signal.SIGKILL)
    wait_ran(hosts, 2, "node-a", "node-c")
    (hosts.work / "finish").touch()
    assert code_of(started) == 0, hosts.log
    assert "node-b: its agent was killed by SIGKILL" in hosts.log
    assert hosts.log.count(" succeeded in ") == 1


@pytest.mark.quick
def test_ctrl_c_cancels_the_job_everywhere(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    started = hosts.start("--hosts", "node-a,node-b", "train.py")
    wait_ran(hosts, 2, "node-a", "node-b")
    os.killpg(started.pid, signal.SIGINT)
    assert code_of(started) == 130, hosts.log
    assert hosts.log.count("was cancelled on node") == 1
    assert hosts.below("node-a") == hosts.below("node-b") == []


@pytest.mark.quick
def test_a_link_that_breaks_has_its_agent_drain(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    words = ("--join-settle", "1", "train.py")
    started = hosts.start("--hosts", "node-a,node-b,node-c", "--nodes", "2:3", *words)
    wait_ran(hosts, 3, "node-a", "node-b", "node-c")
    agent = hosts.agent("node-c")
    hosts.cut("node-c")
    wait_ran(hosts, 2, "node-a", "node-b")
    # All of them have saved one, and writing a line to a link that is gone stopped nobody.
    assert {path.name for path in hosts.work.glob("saved.*")} == {
        "saved.node-a",
        "saved.node-b",
        "saved.node-c",
    }
    wait_until(lambda: not command_line(agent), "the agent of node-c to leave")
    (hosts.work / "finish").touch()
    assert code_of(started) == 0, hosts.log
    assert "node-c: the link is broken" in hosts.log


def test_a_launch_that_is_killed_has_all_agents_drain(hosts: Hosts) -> None:
    (hosts.work / "train.py").write_text(STEPS)
    started = hosts.start("--hosts", "node-a,node-b", "train.py")
    wait_ran(hosts, 2, "node-a", "node-b")
    agents = [hosts.agent(name) for name in ("node-a", "node-b")]
    started.kill()
    wait_until(lambda: not any(map(command_line, agents)), "the agents to leave")
    assert len(list(hosts.work.glob("saved.*"))) == 2


@pytest.mark.quick
def test_the_token_is_in_no_command_line_and_no_environment(hosts: Hosts) -> None:
    """Of the agents, of what ssh runs, and of the launch itself."""
    (hosts.work / "train.py").write_text(STEPS)
    secret = "c0ffee" * 10
    started = hosts.start("--hosts", "node-a,node-b", "train.py", env={"RALLYPOINT_TOKEN": secret})
    wait_ran(hosts, 2, "node-a", "node-b")
    token = hosts.run(["rallypoint", "token", "--run-id", job(hosts.log)])
    mine = hosts.run(
        ["rallypoint", "token", "--run-id", job(hosts.log)], env={"RALLYPOINT_TOKEN": secret}
    )
    assert mine.stdout.startswith("job-")
    assert mine.stdout != token.stdout
    there = [pid for name in ("node-a", "node-b") for pid in hosts.below(name)]
    here = [started.pid, *descendants(started.pid)]
    assert sum(command_line(pid).startswith("ssh ") for pid in here) == 2
    for pid in (*there, *here):
        shown = b"".join(
            Path(f"/proc/{pid}/{file}").read_bytes()
            for file in ("cmdline", "environ")
            if os.access(f"/proc/{pid}/{file}", os.R_OK)
        )
        assert secret.encode() not in shown
        assert mine.stdout.strip().removeprefix("job-").encode() not in shown
    (hosts.work / "finish").touch()
    assert code_of(started) == 0, hosts.log


def job(log: str) -> str:
    """The name of the job that a launch has told."""
    found = re.search(r"(job-\w+) starts on", log)
    assert found is not None, log
    return found[1]
