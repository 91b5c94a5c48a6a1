"""docs/ssh.md: each of its commands, as printed, over a real sshd."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.page import blocks, commands
from tests.harness.cluster import wait_until
from tests.ssh.servers import Hosts

BLOCKS = blocks("ssh.md")
(HOSTFILE,) = (block for block in BLOCKS if "slots=" in block)
LINES = [line for block in BLOCKS if block != HOSTFILE for line in commands(block)]
TRAIN = """
import os
from pathlib import Path
Path("ran." + os.environ["RANK"]).write_text(os.environ["WORLD_SIZE"])
"""
WORKERS = {"--nproc-per-node 2": 6, "--hostfile": 6, "--exclude": 1, "file": 3, "--detach": 2}
"""By what stands in a line: how many workers run."""


@pytest.fixture
def shell(hosts: Hosts, tmp_path: Path) -> dict[str, str]:
    """Where `ssh` knows the hosts, as it does for a person."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {hosts.ssh.replace("ssh", "/usr/bin/ssh", 1)} "$@"\n')
    ssh.chmod(0o755)
    (hosts.work / "train.py").write_text(TRAIN)
    # The users of a page are not those of this machine.
    (hosts.work / "hosts.txt").write_text(HOSTFILE.replace("carol@", ""))
    return {"PATH": f"{tmp_path}:{hosts.env['PATH']}"}


def test_each_line_does_what_the_page_says(hosts: Hosts, shell: dict[str, str]) -> None:
    """In their order: each goes on with what those before it have left."""
    shared = hosts.work / "shared"
    shared.mkdir()
    for printed in LINES:
        line = printed.replace("/shared/jobs", str(shared))
        done = hosts.run(["sh", "-c", line], env=shell)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        workers = next((number for word, number in WORKERS.items() if word in line), 0)
        if "--detach" in line:
            logs = hosts.work / ".local/state/rallypoint/launched/digits"
            wait_until(lambda logs=logs: len(list(logs.glob("*.json"))) == 2, "both summaries")  # type: ignore[misc]
        ran = sorted(hosts.work.glob("ran.*"))
        assert [path.read_text() for path in ran] == [str(workers)] * workers, line
        for path in ran:
            path.unlink()
        if "tail -n" in line:
            assert "job digits succeeded" in done.stdout
        elif "verdict" in line:
            assert done.stdout.startswith("the job succeeded")
        elif "--version" in line:
            assert done.stdout.startswith("rallypoint ")
        else:
            assert line.startswith("rallypoint launch"), f"{line}: what does it show?"
