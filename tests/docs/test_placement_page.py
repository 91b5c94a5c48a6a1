"""docs/placement.md: its command lines do what they say, and print what it shows."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.page import blocks, commands
from tests.harness.cluster import wait_until
from tests.harness.limits import patience
from tests.harness.one_agent import free_port

TO_COPY, EXPLAINED = blocks("placement.md")
HOW_MANY = {"--spares": (3, 2), "--topology": (2, 2), "--world-multiple-of": (2, 4)}
"""By the option that a line is about: how many nodes are started, and how many workers run."""
NAMES = ("n0", "n1", "n2")
TRAIN = """
import os, time
open(os.environ["RANK"], "w").close()
while not os.path.exists("go"):
    time.sleep(0.02)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "train.py").write_text(TRAIN)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    quick = {"PET_RDZV_CONF": "last_call_timeout=1", "OMP_NUM_THREADS": "1"}
    return quick | {"PATH": path, "HOME": str(tmp_path), "PYTHON_EXEC": "python3"}


@pytest.mark.parametrize("line", commands(TO_COPY))
def test_each_line_to_copy_runs(line: str, tmp_path: Path, env: dict[str, str]) -> None:
    """On nodes of this machine: node-a is one of its ports, and /etc/rack a file of the test."""
    nodes, workers = next(how for option, how in HOW_MANY.items() if option in line)
    rack = tmp_path / "rack"
    rack.write_text("rack-1\n")
    line = line.replace("node-a", f"127.0.0.1:{free_port()}").replace("/etc/rack", str(rack))
    words = shlex.split(line, comments=True)
    log = tmp_path / "log"
    with log.open("wb") as file:
        started = [
            subprocess.Popen(
                words, cwd=tmp_path, stderr=file, env=env | {"RALLYPOINT_NODE_ID": name}
            )
            for name in NAMES[:nodes]
        ]
    try:
        # A node that comes when the job is over finds nobody.
        wait_until(lambda: log.read_text().count(" joined\n") == nodes, "all nodes")
        (tmp_path / "go").touch()
        assert [agent.wait(patience(60)) for agent in started] == [0] * nodes
    finally:
        for agent in started:
            agent.kill()
            agent.wait()
    assert sorted(path.name for path in tmp_path.glob("[0-9]")) == [str(n) for n in range(workers)]


def test_what_is_explained_is_what_a_person_sees(tmp_path: Path, env: dict[str, str]) -> None:
    first, _, shown = EXPLAINED.partition("\n")
    del env["PET_RDZV_CONF"]
    command = ["/bin/sh", "-c", first.removeprefix("$ ")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shown
