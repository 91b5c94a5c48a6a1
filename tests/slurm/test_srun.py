"""`srun rallypoint run train.py`, and nothing else, under a real Slurm. `make test` has some."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.harness.cluster import wait_until
from tests.harness.node_lists import lists
from tests.slurm.cluster import Slurm

from rallypoint.integrations.slurm_nodes import node_names

TELL = """
import json, os
names = ("RANK", "WORLD_SIZE", "RALLYPOINT_NODE_ID", "RALLYPOINT_RUN_ID", "MASTER_ADDR")
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
"""
UNTIL_TOLD = """
import time
while not os.path.exists("finish"):
    time.sleep(0.05)
"""
ONE_EACH = ("--ntasks-per-node", "1")
quick = pytest.mark.quick


@pytest.fixture(autouse=True)
def train(slurm: Slurm) -> None:
    (slurm.work / "train.py").write_text(TELL)


def told(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """Of each worker, by rank."""
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: int(each["RANK"]))


@quick
def test_a_plain_srun_is_one_job_with_a_rank_for_each_node(slurm: Slurm) -> None:
    done = slurm.srun("-N3", "rallypoint", "run", "train.py")
    assert done.returncode == 0, done.stderr
    assert [each["RALLYPOINT_NODE_ID"] for each in told(done)] == ["n1", "n2", "n3"]
    assert {each["WORLD_SIZE"] for each in told(done)} == {"3"}
    assert done.stderr.count("succeeded") == 3


@quick
def test_two_jobs_on_the_same_nodes_do_not_meet(slurm: Slurm) -> None:
    with ThreadPoolExecutor() as pool:
        one, two = pool.map(lambda _: slurm.srun("-N2", "rallypoint", "run", "train.py"), range(2))
    for done in (one, two):
        assert done.returncode == 0, done.stderr
        assert {each["WORLD_SIZE"] for each in told(done)} == {"2"}
    assert told(one)[0]["RALLYPOINT_RUN_ID"] != told(two)[0]["RALLYPOINT_RUN_ID"]


@quick
def test_a_sweep_runs_a_job_in_each_task(slurm: Slurm) -> None:
    done = slurm.srun("-N2", "-n4", "rallypoint", "run", "--standalone", "train.py")
    assert done.returncode == 0, done.stderr
    assert [each["WORLD_SIZE"] for each in told(done)] == ["1"] * 4


@quick
def test_a_task_for_each_worker_is_refused_with_what_to_write(slurm: Slurm) -> None:
    done = slurm.srun("-N2", "-n4", "rallypoint", "run", "train.py")
    assert done.returncode == 2
    assert told(done) == []
    assert "srun --ntasks-per-node 1 rallypoint run --nproc-per-node 2 ..." in done.stderr
    assert "Traceback" not in done.stderr


def test_two_agents_of_a_node_are_told_apart(slurm: Slurm) -> None:
    done = slurm.srun("-N2", "-n4", "rallypoint", "run", "--nproc-per-node", "1", "train.py")
    assert done.returncode == 0, done.stderr
    assert len({each["RALLYPOINT_NODE_ID"] for each in told(done)}) == 4


@quick
def test_a_heterogeneous_step_is_refused_with_the_reason(slurm: Slurm) -> None:
    done = slurm.srun("-N1", ":", "-N1", "rallypoint", "run", "train.py")
    assert done.returncode == 2
    assert "SLURM_HET_SIZE=2: Slurm does not tell the tasks of a heterogeneous job" in done.stderr


def test_each_job_of_an_array_is_one_of_its_own(slurm: Slurm) -> None:
    script = "#!/bin/bash\nsrun -l rallypoint run train.py\n"
    words = ("--array=1-2", "-N2", *ONE_EACH, "--output=array-%a.out")
    job = slurm.sbatch(*words, script=script)
    for index in ("1", "2"):
        assert slurm.wait_state(f"{job}_{index}", "COMPLETED", "FAILED") == "COMPLETED 0:0"
    runs = set()
    for index in ("1", "2"):
        lines = (slurm.work / f"array-{index}.out").read_text().splitlines()
        found = [json.loads(line[line.index("{") :]) for line in lines if '{"RANK"' in line]
        assert {each["WORLD_SIZE"] for each in found} == {"2"}
        runs |= {each["RALLYPOINT_RUN_ID"] for each in found}
    assert len(runs) == 2


@quick
def test_a_container_without_the_commands_of_slurm_runs_it_too(slurm: Slurm) -> None:
    """The agents see no command but Python and a shell."""
    bare = slurm.work / "bare"
    bare.mkdir()
    words = ("env", f"PATH={bare}", "HOME=" + str(slurm.work))
    python = slurm.run("which", "rallypoint").stdout.strip()
    done = slurm.srun("-N2", *words, python, "run", "train.py")
    assert done.returncode == 0, done.stderr
    assert {each["WORLD_SIZE"] for each in told(done)} == {"2"}


@quick
def test_lists_of_nodes_are_read_as_scontrol_reads_them(slurm: Slurm) -> None:
    text = ",".join(lists(100))
    done = slurm.run("scontrol", "show", "hostnames", text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == list(node_names(text))


def test_more_nodes_than_the_maximum_stand_by(slurm: Slurm) -> None:
    (slurm.work / "train.py").write_text(TELL + UNTIL_TOLD)
    line = "srun -N4 rallypoint run --nnodes 1:2 train.py 2> err"
    err, finish = slurm.work / "err", slurm.work / "finish"
    with ThreadPoolExecutor() as pool:
        running = pool.submit(slurm.run, "sh", "-c", line)
        try:
            wait_until(lambda: err.exists() and err.read_text().count(" joined\n") == 4, "all")
        finally:
            finish.touch()
    done = running.result()
    assert done.returncode == 0, err.read_text()
    assert [each["WORLD_SIZE"] for each in told(done)] == ["2"] * 2


def test_the_first_node_may_be_lost_where_a_shared_directory_has_the_record(slurm: Slurm) -> None:
    """Which a shared home is without an option; here it is named."""
    (slurm.work / "train.py").write_text(TELL + UNTIL_TOLD)
    line = (
        "srun -N3 --no-kill --kill-on-bad-exit=0 --wait=0 rallypoint run --nnodes 2:3"
        " --rdzv-backend file --rdzv-endpoint jobs --json-summary lost/ train.py > out 2> err"
    )
    (slurm.work / "jobs").mkdir(0o700)
    out, finish = slurm.work / "out", slurm.work / "finish"
    finish.unlink(missing_ok=True)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(slurm.run, "sh", "-c", line)
        try:
            wait_until(lambda: out.exists() and out.read_text().count('"RANK"') == 3, "3 workers")
            slurm.lose("n1")
            wait_until(lambda: out.read_text().count('"RANK"') == 5, "the other two")
        finally:
            finish.touch()
    running.result()
    slurm.start_node("n1")
    verdict = slurm.run("rallypoint", "verdict", "lost")
    assert verdict.returncode == 0, verdict.stderr
    assert verdict.stdout.startswith("the job succeeded")


@quick
def test_slurm_takes_the_batch_script_that_is_generated(slurm: Slurm) -> None:
    generate = "rallypoint generate slurm --nodes 4 --spares 1 > a.sbatch"
    done = slurm.run("sh", "-c", f"{generate} && sbatch --test-only a.sbatch")
    assert done.returncode == 0, done.stderr
