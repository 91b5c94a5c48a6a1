"""The batch script of `rallypoint generate slurm`, under a real Slurm."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.harness.cluster import wait_until
from tests.slurm.cluster import Slurm

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "steps"
STEPS = """
import json, os, sys, time
from pathlib import Path
from rallypoint import worker

rank, world = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
saved = Path(f"step.{rank}")
step = int(saved.read_text()) if saved.exists() else 0
node = os.environ["RALLYPOINT_NODE_ID"]
worker.drain_requested()  # From now on the SIGTERM that Slurm sends to every process is held back.
with open(f"ran.{rank}", "a") as ran:
    print(json.dumps({"from": step, "world": world, "node": node}), file=ran)
while not Path("finish").exists():
    time.sleep(0.05)
    step += 1
    if worker.drain_requested():
        saved.write_text(str(step))
        worker.checkpoint_saved(step)
"""
"""Counts steps until it is told to finish; goes on from its checkpoint."""

WAITS = """
import os, time
from pathlib import Path
Path("task" + os.environ["SLURM_ARRAY_TASK_ID"] + "." + os.environ["RANK"]).touch()
while not Path("finish").exists():
    time.sleep(0.05)
"""

LOOKS = """
import os
from pathlib import Path
tokens = {"user": Path.home() / ".config/rallypoint/token", "job": next(Path().glob("*/*/token"))}
assert {path.stat().st_mode & 0o777 for path in tokens.values()} == {0o600}
seen = [f"the token of the {name} is read" for name in tokens]
for process in Path("/proc").iterdir():
    for name in ("environ", "cmdline"):
        try:
            text = (process / name).read_bytes()
        except OSError:
            continue
        for whose, path in tokens.items():
            if path.read_bytes().strip().removeprefix(b"job-") in text:
                seen.append(f"the token of the {whose} is in {name} of {process.name}")
Path("seen." + os.environ["RANK"]).write_text("\\n".join(seen))
"""
"""Searches what every process of this machine shows for the tokens, as root may."""


@pytest.fixture(autouse=True)
def clean(slurm: Slurm) -> None:
    for path in slurm.work.glob("*"):
        if path.is_file():
            path.unlink()
    (slurm.work / "train.py").write_text(STEPS)


def generated(slurm: Slurm, *words: str) -> str:
    done = slurm.run("rallypoint", "generate", "slurm", "--name", NAME, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def runs(slurm: Slurm, rank: int) -> list[dict[str, object]]:
    """What the workers of this rank have said at their start."""
    path = slurm.work / f"ran.{rank}"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_running(slurm: Slurm, world: int, times: int = 1) -> None:
    wait_until(
        lambda: all(len(runs(slurm, rank)) >= times for rank in range(world)),
        f"{world} workers to run for the time number {times}",
        90,
    )


def output(slurm: Slurm, job: str) -> str:
    paths = [
        slurm.work / f"{NAME}-{job}.out",
        *sorted((slurm.work / f"{NAME}-{job}").rglob("*.log")),
    ]
    return "\n".join(path.read_text() for path in paths if path.exists())


def checkpoints(slurm: Slurm) -> list[Path]:
    return sorted(slurm.work.glob("step.*"))


def test_digits_heals_with_the_spare_when_a_node_is_down_and_slurm_says_completed(
    slurm: Slurm,
) -> None:
    shutil.copy(EXAMPLES / "digits" / "train.py", slurm.work)
    train = ("train.py", "--epochs", "12", "--epoch-seconds", "0.5")
    script = generated(slurm, "--nodes", "4", "--spares", "1", "--time", "0:10:00", *train)
    job = slurm.sbatch(script=script, env={"OMP_NUM_THREADS": "1"})
    wait_until(lambda: "epoch 2/12" in output(slurm, job), "two epochs", 120)
    [lost] = re.findall(r"(n\d): round 0: node 1 of 3", output(slurm, job))
    slurm.lose(lost)
    wait_until(lambda: slurm.node_states()[lost].startswith("down"), f"{lost} to be down", 60)
    try:
        state = slurm.wait_state(job, "COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", limit_s=120)
    finally:
        slurm.start_node(lost)
    said = output(slurm, job)
    assert state == "COMPLETED 0:0", said
    assert "the job succeeded" in (slurm.work / f"{NAME}-{job}.out").read_text()
    assert lost not in re.findall(r"(n\d): round 1: node \d of 3", said)
    assert "resumed after epoch" in said
    assert float(re.findall(r"^accuracy ([\d.]+)", said, re.MULTILINE)[-1]) > 0.9


def test_before_the_time_limit_all_ranks_save_a_checkpoint_and_a_requeue_goes_on_from_it(
    slurm: Slurm,
) -> None:
    script = generated(slurm, "--nodes", "2", "--time", "1", "--stop-before", "50")
    job = slurm.sbatch(script=script)
    wait_running(slurm, 2)
    wait_until(lambda: len(checkpoints(slurm)) == 2, "checkpoints of both ranks", 60)
    slurm.wait_state(job, "PENDING")
    slurm.start_soon(job)
    wait_running(slurm, 2, times=2)
    saved = [int(path.read_text()) for path in checkpoints(slurm)]
    assert [runs(slurm, rank)[1]["from"] for rank in range(2)] == saved
    (slurm.work / "finish").touch()
    state = slurm.wait_state(job, "COMPLETED", "FAILED", "TIMEOUT")
    assert state == "COMPLETED 0:0", output(slurm, job)
    assert {path.name for path in (slurm.work / f"{NAME}-{job}").iterdir()} == {"run-0", "run-1"}
    assert not list(slurm.work.rglob(f"{NAME}-{job}/*/token")), "of neither run"


def test_a_signal_before_the_limit_and_the_limit_itself_leave_a_checkpoint_of_all_ranks(
    slurm: Slurm,
) -> None:
    """Slurm sends the signal to every process of the step, up to a minute earlier than it is told,
    and the job is requeued. At the limit it ends, with nothing set up for it."""
    limited = slurm.work / "limited"
    limited.mkdir()
    (limited / "train.py").write_text(STEPS)
    script = generated(slurm, "--nodes", "2", "--time", "1", "--stop-before", "1")
    (stops,) = re.findall(r"^ +--stop-at .*\n", script, re.MULTILINE)
    at_limit = slurm.sbatch("--chdir", str(limited), script=script.replace(stops, ""))
    script = generated(slurm, "--nodes", "2", "--time", "2", "--stop-before", "1")
    job = slurm.sbatch("--signal=TERM@40", script=script)
    wait_running(slurm, 2)
    slurm.wait_state(job, "PENDING", "FAILED", "COMPLETED", "TIMEOUT", limit_s=150)
    assert "Restarts=1" in slurm.described(job)
    assert len(checkpoints(slurm)) == 2
    assert "got SIGTERM" in output(slurm, job)
    assert "Exited with exit code 143" in output(slurm, job)
    assert slurm.run("scancel", job).returncode == 0
    slurm.wait_state(at_limit, "TIMEOUT", "PENDING", "FAILED", "COMPLETED", limit_s=150)
    assert slurm.state(at_limit).startswith("TIMEOUT")
    wait_until(lambda: len(list(limited.glob("step.*"))) == 2, "checkpoints of both ranks")
    logs = [path.read_text() for path in limited.rglob("*.log")]
    assert ["got SIGTERM" in log for log in logs] == [True, True]


def test_scancel_leaves_a_checkpoint_of_all_ranks(slurm: Slurm) -> None:
    """Slurm sends SIGTERM to every process of the step; the workers do not die of it."""
    job = slurm.sbatch(script=generated(slurm, "--nodes", "3", "--time", "0:10:00"))
    wait_running(slurm, 3)
    assert slurm.run("scancel", job).returncode == 0
    slurm.wait_state(job, "CANCELLED")
    wait_until(lambda: len(checkpoints(slurm)) == 3, "checkpoints of all ranks")
    wait_until(lambda: not slurm.tasks(), "all processes to end")
    wait_until(lambda: not list(slurm.work.rglob(f"{NAME}-{job}/*/token")), "the token to be gone")
    assert output(slurm, job).count("Exited with exit code 143") == 3
    assert "Restarts=0" in slurm.described(job)


def test_a_job_that_fails_is_failed_and_not_started_again(slurm: Slurm) -> None:
    (slurm.work / "train.py").write_text("raise SystemExit(3)")
    script = generated(slurm, "--nodes", "2", "--time", "0:10:00", "--max-restarts", "0")
    job = slurm.sbatch(script=script)
    assert slurm.wait_state(job, "COMPLETED", "FAILED") == "FAILED 1:0"
    assert "the job failed" in (slurm.work / f"{NAME}-{job}.out").read_text()


def test_a_mistake_in_the_command_line_is_not_started_again(slurm: Slurm) -> None:
    script = generated(slurm, "--nodes", "2", "--time", "0:10:00")
    job = slurm.sbatch(script=script.replace("rallypoint run", "rallypoint run --spears 1"))
    assert slurm.wait_state(job, "COMPLETED", "FAILED") == "FAILED 2:0"
    assert "--spears" in output(slurm, job)


def test_a_job_of_an_array_that_is_requeued_leaves_the_others_alone(slurm: Slurm) -> None:
    (slurm.work / "train.py").write_text(WAITS)
    script = generated(slurm, "--nodes", "2", "--time", "0:10:00")
    job = slurm.sbatch("--array=1-2", script=script)
    wait_until(lambda: len(list(slurm.work.glob("task*"))) == 4, "the workers of both")
    assert slurm.run("scancel", "--signal=TERM", f"{job}_1").returncode == 0
    slurm.wait_state(f"{job}_1", "PENDING")
    assert "Restarts=1" in slurm.described(f"{job}_1")
    assert "Restarts=0" in slurm.described(f"{job}_2")
    (slurm.work / "finish").touch()
    assert slurm.wait_state(f"{job}_2", "COMPLETED", "FAILED") == "COMPLETED 0:0"
    assert slurm.run("scancel", job).returncode == 0


def test_F8_the_token_of_the_run_alone_is_used_and_no_process_shows_it(slurm: Slurm) -> None:
    """No environment and no command line has it, nor the token of the user."""
    (slurm.work / "train.py").write_text(LOOKS)
    assert slurm.run("rallypoint", "token").returncode == 0
    job = slurm.sbatch(script=generated(slurm, "--nodes", "2", "--time", "0:10:00"))
    state = slurm.wait_state(job, "COMPLETED", "FAILED")
    assert state == "COMPLETED 0:0", output(slurm, job)
    read = "the token of the user is read\nthe token of the job is read"
    assert [path.read_text() for path in slurm.work.glob("seen.*")] == [read] * 2
    assert not list(slurm.work.rglob(f"{NAME}-{job}/*/token")), "the script removes it at its end"


def test_words_reach_the_script_through_slurm_as_they_were_given(slurm: Slurm) -> None:
    """Slurm refuses scripts with line breaks of DOS. One word is longer than a printed line."""
    (slurm.work / "train.py").write_text("import json, sys; json.dump(sys.argv, open('got', 'w'))")
    words = ["a\r\nb", 'it\'s "$(id)" \\', "\u202e\x1b", "", "\n#SBATCH --wrap=id\n", "x" * 9000]
    job = slurm.sbatch(script=generated(slurm, "--nodes", "1", "train.py", *words))
    state = slurm.wait_state(job, "COMPLETED", "FAILED")
    assert state == "COMPLETED 0:0", output(slurm, job)
    assert json.loads((slurm.work / "got").read_text()) == ["train.py", *words]
