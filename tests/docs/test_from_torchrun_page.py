"""docs/from-torchrun.md: the lines to copy run, and each is that of torchrun with another word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.page import blocks, commands
from tests.harness.limits import patience
from tests.harness.one_agent import free_port

TO_COPY = blocks("from-torchrun.md")[0]
TRAIN = "import os; open(os.environ['RANK'], 'w').write(os.environ['WORLD_SIZE'])"


def test_only_the_word_differs() -> None:
    theirs = [line[2:] for line in TO_COPY.splitlines() if line.startswith("# ")]
    assert [line.replace("torchrun", "rallypoint run") for line in theirs] == commands(TO_COPY)


@pytest.mark.parametrize("line", commands(TO_COPY))
def test_each_line_to_copy_runs(line: str, tmp_path: Path) -> None:
    """On nodes of this machine: node-a and its port are free ones of this machine."""
    (tmp_path / "train.py").write_text(TRAIN)
    nodes = 2 if "--nnodes 2" in line else 1
    port = str(free_port())
    line = line.replace("node-a", "127.0.0.1").replace("29400", port).replace("29500", port)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "HOME": str(tmp_path), "PYTHON_EXEC": "python3"}
    started = [
        subprocess.Popen(
            ["/bin/sh", "-c", f"exec {line}"],
            cwd=tmp_path,
            env=env | {"RALLYPOINT_NODE_ID": f"n{rank}", "RANK_OF_NODE": str(rank)},
        )
        for rank in range(nodes)
    ]
    try:
        assert [agent.wait(patience(60)) for agent in started] == [0] * nodes
    finally:
        for agent in started:
            agent.kill()
            agent.wait()
    said = {path.name: path.read_text() for path in tmp_path.glob("[0-9]")}
    assert said == {"0": "2", "1": "2"}


def test_the_program_starts_the_same_job(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("from-torchrun.md") if "elastic_launch(" in block]
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "program.py").write_text(text)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "program.py"]
    done = subprocess.run(words, cwd=tmp_path, env=env, timeout=patience(60), capture_output=True)
    assert done.returncode == 0, done.stderr
    said = {path.name: path.read_text() for path in tmp_path.glob("[0-9]")}
    assert said == {"0": "2", "1": "2"}
