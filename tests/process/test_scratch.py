"""The temporary directory of an agent: gone when the agent is, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.one_agent import OneAgent, agent, ended, eventually, free_port

from rallypoint.machine_name import kernel_id
from rallypoint.process.scratch import Scratch, is_ours, sweep

KERNEL, RANDOM = "0123456789abcdef", "fedcba9876543210"
NAME = f"rallypoint-agent-my_job_{KERNEL}_{RANDOM}"
WAITS = "import time; tell('runs'); time.sleep(600)"
UNTIL = "import os, sys, time\nwhile os.path.exists(sys.argv[1]): time.sleep(0.01)"


def test_what_a_program_keeps_is_swept_when_the_program_is_gone(tmp_path: Path) -> None:
    """As by the next agent, after a SIGKILL."""
    text = (
        "import os, sys, time\n"
        "from rallypoint.process.scratch import Scratch\n"
        "scratch = Scratch(sys.argv[1], 'j')\n"
        "scratch.make()\n"
        "for name in ('logs', 'round_1'): os.mkdir(os.path.join(scratch.path, name))\n"
        "open(os.path.join(scratch.path, 'job'), 'w').close()\n"
        "scratch.keep(os.path.join(scratch.path, 'logs'))\n"
        "print('kept', flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", text, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "kept\n"
        (name,) = listed(tmp_path)
        assert listed(tmp_path / name) == {"logs", "kept"}
        sweep([str(tmp_path)])
        assert listed(tmp_path) == {name}
        program.kill()
    sweep([str(tmp_path)])
    assert listed(tmp_path) == set()


def listed(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def kill_all(run: OneAgent) -> None:
    """As a container ends: nobody of it can do anything more."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in run.processes():
            os.kill(pid, number)
    run.wait_gone()


@pytest.mark.parametrize("options", [(), ("--tee=3",)])
def test_A6_an_agent_that_is_killed_while_it_starts_leaves_no_directory(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    # It waits for another node: a directory that may stay is made with the first round.
    two = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
    with agent(tmp_path, *two, *options, program=WAITS) as run:
        while not listed(tmp_path / "tmp"):
            assert run.process.poll() is None, run.err
        run.send(signal.SIGKILL)
        run.wait_gone()
        assert listed(tmp_path / "tmp") == set()


def test_A6_what_a_killed_container_left_is_removed_by_the_next_agent(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("killed", "alive", "next")]
    for home in (*homes, shared := tmp_path / "shared"):
        home.mkdir()
    env = {"TMPDIR": str(shared)}
    with agent(homes[0], program=WAITS, env=env) as killed:
        killed.wait_told("runs", 1)
        kill_all(killed)
    (left,) = listed(shared)
    go = tmp_path / "until"
    go.touch()
    with agent(homes[1], program=UNTIL, arguments=[str(go)], env=env) as alive:
        eventually(lambda: len(listed(shared) - {left}) == 1, "a directory of the agent that lives")
        (used,) = listed(shared) - {left}
        ended(agent(homes[2], program=UNTIL, arguments=[str(shared / left)], env=env), 0)
        assert listed(shared) == {used}
        go.unlink()
        assert alive.wait() == 0
    assert listed(shared) == set()


def made_and_killed(place: Path) -> str:
    """The directory of a process that has died without a word."""
    pid = os.fork()
    if pid == 0:
        scratch = Scratch(str(place), "job")
        scratch.make()
        Path(scratch.path, "round_0").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (name,) = listed(place)
    return name


def test_A6_only_what_nobody_uses_is_swept(tmp_path: Path) -> None:
    left = made_and_killed(tmp_path)
    used = Scratch(str(tmp_path), "job")
    used.make()
    assert listed(tmp_path) == {left, os.path.basename(used.path)}
    sweep([str(tmp_path)])
    assert listed(tmp_path) == {os.path.basename(used.path)}
    used.remove()
    assert listed(tmp_path) == set()


def test_A6_nothing_that_a_link_leads_to_is_swept(tmp_path: Path) -> None:
    place, kept = tmp_path / "place", tmp_path / "kept"
    for made in (place, kept):
        made.mkdir()
    left = made_and_killed(place)
    (kept / "file").touch()
    (place / left / "inner").symlink_to(kept)
    outer = f"rallypoint-agent-job_{kernel_id()}_{RANDOM}"
    kept.chmod(0o700)
    (place / outer).symlink_to(kept)
    sweep([str(place), str(tmp_path / "absent")])
    assert listed(place) == {outer}
    assert listed(kept) == {"file"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too")
def test_A6_what_another_user_has_made_is_not_swept(tmp_path: Path) -> None:
    left = made_and_killed(tmp_path)
    os.chown(tmp_path / left, 65534, 65534)
    sweep([str(tmp_path)])
    assert listed(tmp_path) == {left}


def test_a_directory_is_made_where_one_can_be(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "absent"), "job")
    scratch.make()
    try:
        assert os.path.dirname(scratch.path) == "/tmp"
        assert scratch.path in scratch.paths
    finally:
        scratch.remove()
    assert not any(map(os.path.exists, scratch.paths))


@pytest.mark.parametrize(
    ("name", "mode", "owner", "kernel", "ours"),
    [
        (NAME, 0o40700, 7, KERNEL, True),
        (NAME, 0o42700, 7, KERNEL, True),  # in a directory whose group is inherited
        (NAME, 0o40700, 8, KERNEL, False),
        (NAME, 0o40755, 7, KERNEL, False),
        (NAME, 0o100700, 7, KERNEL, False),
        (NAME, 0o120777, 7, KERNEL, False),
        (NAME, 0o40700, 7, RANDOM, False),
        (NAME, 0o40700, 7, "", False),
        (f"rallypoint-agent-job__{RANDOM}", 0o40700, 7, "", False),
        (f"rallypoint-job_{KERNEL}_{RANDOM}", 0o40700, 7, KERNEL, False),
        (f"rallypoint-host-job_{KERNEL}_{RANDOM}", 0o40700, 7, KERNEL, False),
        (f"rallypoint-agent-job_{KERNEL}_kept", 0o40700, 7, KERNEL, False),
        ("rallypoint-agent-", 0o40700, 7, KERNEL, False),
    ],
)
def test_whose_directory_it_is(name: str, mode: int, owner: int, kernel: str, ours: bool) -> None:
    assert is_ours(name, mode, owner, user=7, kernel=kernel) is ours
