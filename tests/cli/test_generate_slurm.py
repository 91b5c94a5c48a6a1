"""`rallypoint generate slurm`, without a Slurm: what it prints is a script, and what it refuses."""

from __future__ import annotations

import subprocess

import pytest

from rallypoint.cli.main import main


def script(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["generate", "slurm", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    checked = subprocess.run(["bash", "-n"], input=out, capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    return out


def test_what_is_asked_for_is_in_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--nodes 5 --spares 1 --gpus 8 --time 2-12:00:00 --name big --partition long"
    asked += " --account a --env-style jax --max-restarts 7"
    out = script(capsys, *asked.split(), "a b.py", "--lr", "1e-3")
    for line in ("nodes=5", "gpus-per-node=8", "time=2-12:00:00", "job-name=big", "partition=long"):
        assert f"#SBATCH --{line}\n" in out
    assert "#SBATCH --account=a\n" in out
    assert '--token-file "$logs/token" --spares 1 --env-style jax --max-restarts 7 \\\n' in out
    assert "    'a b.py' --lr 1e-3\n" in out


def test_the_workers_of_a_node_share_the_cpus_that_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Since Slurm 22.05 srun does not take the number from the allocation."""
    out = script(capsys, "--cpus", "64")
    assert "#SBATCH --cpus-per-task=64\n" in out
    assert "--wait=0 --cpus-per-task=64 --output" in out


def test_the_script_says_that_without_cpus_all_workers_may_get_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "##SBATCH --cpus-per-task=N       # without it, Slurm may give all" in script(capsys)


@pytest.mark.parametrize("limit", ["3", "2:01", "0:02:01", "1-0", "0-0:3", "1:00:00"])
def test_a_limit_above_the_time_to_stop_is_one(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"#SBATCH --time={limit}\n" in script(capsys, "--time", limit)


def test_a_drain_is_over_before_the_time_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--stop-before 60 --drain-deadline 54 \\" in script(capsys, "--stop-before", "60")


def test_what_is_left_out_is_left_to_slurm(capsys: pytest.CaptureFixture[str]) -> None:
    out = script(capsys)
    for option in ("gpus", "partition", "spares", "nproc"):
        assert f"--{option}" not in out
    assert "    train.py\n" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--nodes 2:4", "--nodes 2:4: needs one number: Slurm gives a job a fixed number of nodes"),
        ("--nodes 0", "--nodes 0: needs"),
        ("--nodes 3 --spares 3", "--nodes 3, --spares 3: leaves no node to work"),
        ("--gpus many", "--gpus many: needs a whole number"),
        ("--time soon", "--time soon: needs a time limit as Slurm has it, like 1:00:00"),
        ("--name a/b", "--name a/b: needs letters, digits, and"),
        ("--cpus some", "--cpus some: needs a whole number"),
        ("--account a/b", "--account a/b: needs the name of an account"),
        ("--partition 'a b'", "--partition 'a: needs the name of a partition"),
        ("--stop-before 0", "--stop-before 0: needs"),
        ("--time 2", "--stop-before 120, --time 2: leaves no time to work"),
        ("--time 1:30", "--stop-before 120, --time 1:30: leaves no time to work"),
        ("--time 0:02:00", "--stop-before 120, --time 0:02:00: leaves no time to work"),
        ("--stop-before 86400 --time 1-0", "--time 1-0: leaves no time to work"),
        ("--nodez 3", "--nodez"),
    ],
)
def test_a_mistake_is_one_line(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "slurm", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) <= 2, "the reason, and where help is"
    assert says in err
