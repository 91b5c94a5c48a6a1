"""docs/slurm.md: each of its commands, as printed, on a real Slurm."""

from __future__ import annotations

import re

from tests.docs.page import blocks, commands
from tests.harness.cluster import wait_until
from tests.slurm.cluster import Slurm

LINES = [line for block in blocks("slurm.md") for line in commands(block)]
TRAIN = """
import os
from pathlib import Path
Path(f"ran.{os.environ['SLURM_JOB_ID']}.{os.getpid()}").write_text(os.environ["WORLD_SIZE"])
"""
WORLDS = {
    "--standalone": ["1"] * 4,
    "--env-style jax": ["2"] * 2,
    "--nodes 3": ["3"] * 3,
    "rallypoint run --spares 1": ["3"] * 3,
    "sbatch train": ["3"] * 3,
}
"""By the first of these words that a line has: the world sizes that its workers are told."""

WAITING = """
import os, time
from pathlib import Path
print("step 3", flush=True)
while not Path("enough").exists():
    time.sleep(0.1)
"""


def test_each_line_does_what_the_page_says(slurm: Slurm) -> None:
    """In their order: each goes on with what those before it have left."""
    (slurm.work / "train.py").write_text(TRAIN)
    job = ""
    for line in (line for line in LINES if " --slurm " not in line):
        done = slurm.run("sh", "-c", line, env={"JOB": job})
        if "--spares" in line and done.returncode:  # The spare has come after the end of this job.
            assert done.returncode == 75, (line, done.stderr)
            assert done.stderr.count("with exit code 75") == 1, done.stderr
        else:
            assert done.returncode == 0, (line, done.stderr)
        if submitted := re.match(r"Submitted batch job (\d+)\n", done.stdout):
            job = submitted[1]
            indices = ("_1", "_2") if "--array" in line else ("",)
            for index in indices:
                assert slurm.wait_state(job + index, "COMPLETED", "FAILED") == "COMPLETED 0:0"
        ran = sorted(slurm.work.glob("ran.*"))
        found = [path.read_text() for path in ran]
        expected = next((worlds for word, worlds in WORLDS.items() if word in line), None)
        if expected is not None:
            assert found == expected, line
        elif "--array" in line:
            assert found == ["3"] * 6
        elif "verdict" in line:
            assert done.stdout.startswith("the job succeeded")
        else:
            assert line.startswith("rallypoint generate slurm"), f"{line}: what does it show?"
        for path in ran:
            path.unlink()


def test_V7_a_job_that_runs_is_looked_at_by_the_number_that_slurm_has_given_it(
    slurm: Slurm,
) -> None:
    """The lines of the page with `--slurm`."""
    (slurm.work / "wait.py").write_text(WAITING)
    started = slurm.run("sh", "-c", "sbatch --nodes 2 --wrap 'srun rallypoint run wait.py'")
    found = re.match(r"Submitted batch job (\d+)\n", started.stdout)
    assert found is not None, started.stderr
    lines = [line for line in LINES if " --slurm " in line]
    said = {"status": "2 of 2 in the round", "events": "round 0: 2 nodes", "logs": "step 3"}

    def asked(line: str) -> str:
        words = line.replace("--slurm 10", f"--slurm {found[1]}").replace("logs 17", "logs 1")
        done = slurm.run("sh", "-c", words.replace(" -f", ""))
        return done.stdout if done.returncode == 0 else ""

    wait_until(lambda: said["status"] in asked(lines[0]), "the job to run")
    for line in lines:
        assert said.get(line.split()[1], "") in asked(line), line
    (slurm.work / "enough").touch()
    assert slurm.wait_state(found[1], "COMPLETED", "FAILED") == "COMPLETED 0:0"
    assert "succeeded" in asked(lines[0]), "its end is kept"
