"""Lists of hosts that name more of them than a job can have nodes: refused in one line, and not
built."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.main import main
from rallypoint.core.settings import MAX_NODES
from rallypoint.errors import UsageError
from rallypoint.integrations.hostfile import read_hostfile, read_hosts, without
from rallypoint.integrations.slurm_nodes import node_names
from rallypoint.integrations.slurm_step import read_step

HALF = f"[1-{MAX_NODES // 2 + 1}]"
LONG = {
    "one range": "n[1-999999999]",
    "two entries": f"n{HALF},m{HALF}",
    "two ranges": f"n[1-{MAX_NODES // 2 + 1},1-{MAX_NODES // 2 + 1}]",
    "pairs of brackets": "n" + "[0-9]" * 6,
    "very many pairs": "n" + "[0-9]" * 200,
    "a range a thousand times": f"n[{','.join(['0-99999'] * 1000)}]",
    "names of a thousand characters": f"{'x' * 1100}[1-99999]",
}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURMD_NODENAME": "n1",
}


def refusal(read: Callable[[str], object], text: str) -> str:
    """Why a list is refused; it takes no memory meanwhile."""
    tracemalloc.start()
    try:
        with pytest.raises((ValueError, UsageError)) as refused:
            read(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20
    said = str(refused.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", LONG)
def test_a_list_of_too_many_hosts_is_refused_before_it_is_built(name: str) -> None:
    text = LONG[name]
    for read in (read_hosts, node_names, lambda each: without(read_hosts("a"), each)):
        said = refusal(read, text)
        assert "more than 1" in said or "is no range of at most 100000 numbers" in said
        assert len(said) < 200
    if name != "two entries":  # A line has one entry.
        assert refusal(read_hostfile, f"a\n{text} slots=8\n").startswith("line 2: ")


def test_a_hostfile_of_too_many_hosts_is_refused_with_the_line() -> None:
    assert refusal(read_hostfile, "a\nn[1-100000]\n") == f"line 2: more than {MAX_NODES} hosts"


def test_the_longest_list_is_read() -> None:
    assert len(read_hosts(f"n[1-{MAX_NODES}]")) == MAX_NODES
    assert len(node_names(f"n[1-{MAX_NODES - 1}],login")) == MAX_NODES
    assert len(without(read_hosts(f"n[1-{MAX_NODES}]"), f"n[2-{MAX_NODES}]")) == 1


def test_a_list_of_many_commas_is_read_in_linear_time() -> None:
    """The number of steps was the square of their number: hours for this list."""
    assert refusal(read_hosts, "a," * 300_000 + "b") == f"more than {MAX_NODES} hosts"
    assert len(read_hosts(",".join(f"n{number}" for number in range(20_000)))) == 20_000


def test_a_command_with_too_many_hosts_ends_with_2_and_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for hosts in LONG.values():
        assert main(["launch", "--hosts", hosts, "train.py"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1
        assert err.startswith("rallypoint launch: --hosts ")


@pytest.mark.parametrize("name", LONG)
def test_a_step_of_slurm_with_too_many_nodes_is_refused(name: str) -> None:
    environ = STEP | {"SLURM_STEP_NODELIST": LONG[name]}
    assert refusal(lambda _: read_step(environ), "").startswith("SLURM_STEP_NODELIST=")


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"])
def test_a_number_of_slurm_with_thousands_of_digits_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="Slurm gives a number there"):
        read_step(STEP | {name: "9" * 5000})


def test_other_variables_of_slurm_with_thousands_of_digits_say_nothing() -> None:
    odd = {"SLURM_STEP_ID": "9" * 5000, "SLURM_GPUS_ON_NODE": "9" * 5000}
    step = read_step(STEP | odd)
    assert "--nproc-per-node" not in step.further
    assert step.port == read_step(STEP).port


def test_a_hostfile_that_is_too_large_is_not_cut(tmp_path: Path) -> None:
    """Without the rest of the hosts a smaller job would start."""
    path = tmp_path / "hosts"
    path.write_text("# a comment\n" * (1 << 19))
    with pytest.raises(OSError, match="it has more than 4 MiB"):
        ThisHost().read_whole(str(path))
