"""The examples do what their first lines and the documents say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended

pytestmark = pytest.mark.executed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

"""Imported once for all workers; the second is what DistributedDataParallel imports late."""
OUTLIVE = """
import gc
import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist


def tell_gloo(at):
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    line = f"{at}: {[name for name in names if 'gloo' in name]}\\n"
    os.write(1, line.encode())


gc.disable()  # Nothing is collected by luck.
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
tell_gloo("after training")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.barrier()  # A thread that has worked has its name.
tell_gloo("with a group")
dist.destroy_process_group()
"""
"""Runs another program in its own process, and is still there when that has come to its end."""


def test_hello_says_who_every_worker_is(tmp_path: Path) -> None:
    script = str(EXAMPLES / "hello" / "hello.py")
    run = ended(agent(tmp_path, "--nproc-per-node=2", script, "0"), 0)
    said = sorted(line.partition(", pid")[0] for line in run.out.splitlines())
    assert said == ["rank 0 of 2: round 0", "rank 1 of 2: round 0"]


@pytest.mark.frameworks
def test_digits_resumes_from_its_checkpoint(tmp_path: Path, digits_python: str) -> None:
    """Two epochs, then the third alone; the checkpoint is replaced whole, never written over.

    The second run shows too that a worker ends the threads of its group: one of them that wants
    Python while the interpreter ends would abort the worker.
    """
    (tmp_path / "outlive.py").write_text(OUTLIVE)
    options = ("--nproc-per-node=2",)
    train = (str(EXAMPLES / "digits" / "train.py"), "--epochs")
    # An empty folder that torch would leave in the temporary directory, where ours may not be.
    env = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "PYTHON_EXEC": digits_python,
    }

    run = ended(agent(tmp_path, *options, *train, "2", env=env), 0)
    assert "resumed" not in run.out
    assert epochs(run.out) == ["1/2", "2/2"]
    assert accuracy(run.out) > 0.5  # Guessing is right once in ten.
    second_loss = losses(run.out)[-1]
    checkpoint, second = tmp_path / "digits.pt", tmp_path / "second.pt"
    second.hardlink_to(checkpoint)
    written = second.read_bytes()

    run = ended(agent(tmp_path, *options, "outlive.py", *train, "3", env=env), 0)
    assert "resumed after epoch 2" in run.out.splitlines()
    assert epochs(run.out) == ["3/3"]
    assert losses(run.out)[0] < second_loss, "it learnt on from what it knew"
    assert accuracy(run.out) > 0.5
    assert second.read_bytes() == written != checkpoint.read_bytes()
    assert [path.name for path in tmp_path.glob("digits*")] == ["digits.pt"]
    assert run.told("after training:") == ["[]", "[]"]
    told = ["gloo" in names for names in run.told("with a group:")]
    assert told == [True, True], "threads go by another name"


def python_of(page: str) -> list[str]:
    """Return the lines of a page's blocks of Python."""
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    return [line.strip() for block in blocks for line in block.splitlines() if line]


def test_the_tutorial_quotes_its_script() -> None:
    page = (EXAMPLES.parent / "docs" / "tutorial.md").read_text("utf-8")
    script = [
        line.strip() for line in (EXAMPLES / "tutorial" / "elastic.py").read_text().splitlines()
    ]
    quoted = python_of(page)
    assert len(quoted) > 10
    assert [line for line in quoted if line not in script] == []


@pytest.mark.frameworks
def test_the_script_of_the_tutorial_continues_from_its_checkpoint(
    tmp_path: Path, digits_python: str
) -> None:
    """Rank 1 is killed once, after step 45: no step up to the last checkpoint is done again."""
    script = (EXAMPLES / "tutorial" / "elastic.py").read_text().replace("sleep(0.2)", "sleep(0.01)")
    kill = """if step == 45 and dist.get_rank() == 1 and worker.context().round == 0:
            os.kill(os.getpid(), 9)
        worker.progress("""
    (tmp_path / "train.py").write_text(script.replace("worker.progress(", kill, 1))
    env = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": digits_python}
    run = ended(agent(tmp_path, "--nproc-per-node=2", "--max-restarts=1", "train.py", env=env), 0)
    steps = re.findall(r"^step (\d+)/100 of 2 workers", run.out, re.MULTILINE)
    assert steps == [str(step) for step in range(10, 101, 10)]
    assert "was killed by SIGKILL" in run.err


def epochs(out: str) -> list[str]:
    """Which epochs were trained, in order."""
    return re.findall(r"^epoch (\S+):", out, re.MULTILINE)


def losses(out: str) -> list[float]:
    """Of the epochs, in order."""
    return [float(found) for found in re.findall(r"^epoch \S+: loss ([\d.]+)", out, re.MULTILINE)]


def accuracy(out: str) -> float:
    """What the last line says."""
    (found,) = [line for line in out.splitlines() if line.startswith("accuracy ")]
    return float(found.split()[1])
