"""`--numa-binding` on this machine: workers really run where they were bound to."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended
from tests.harness.own_program import program

from rallypoint.config import AffinityMode
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, NumaOptions, Std, start_processes
from rallypoint.process.affinity import allowed_cpus, read_cpus
from rallypoint.process.spawn import Stage, WorkerCommand, WorkerStartError, spawn_workers
from rallypoint.process.syscalls import reap_if_exited

WHERE = """
import os, threading
def look():
    global seen
    seen = sorted(os.sched_getaffinity(0))
thread = threading.Thread(target=look)
thread.start()
thread.join()
tell("cpus", os.environ["RALLYPOINT_LOCAL_RANK"], *seen)
"""
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
HERE = read_cpus(allowed_cpus(), "/sys")
CORES = len({cpu.core for cpu in HERE})


def told(lines: list[str]) -> dict[int, set[int]]:
    """The CPUs of each worker, by local rank."""
    numbers = [[int(word) for word in line.split()] for line in lines]
    return {first: set(rest) for first, *rest in numbers}


@pytest.mark.parametrize("mode", list(AffinityMode))
def test_workers_run_on_what_the_mode_gives_them(tmp_path: Path, mode: AffinityMode) -> None:
    count = min(2, CORES)
    options = ("--numa-binding", mode.value, "--nproc-per-node", str(count))
    run = ended(agent(tmp_path, *options, program=WHERE, env=HIDDEN), 0)
    found = told(run.told("cpus"))
    assert "no NVIDIA GPU is visible: the workers are spread over" in run.err
    assert set(found) == set(range(count))
    nodes = [{cpu.number for cpu in HERE if cpu.node == node} for node in range(64)]
    for cpus in found.values():
        assert cpus
        assert mode is AffinityMode.SOCKET or any(cpus <= node for node in nodes)
    if mode is AffinityMode.EXCLUSIVE:
        assert sum(map(len, found.values())) == len(set().union(*found.values()))
        cores = [{cpu.core for cpu in HERE if cpu.number in cpus} for cpus in found.values()]
        assert sum(map(len, cores)) == len(set().union(*cores)), "no core has two workers"


def test_the_agent_itself_stays_where_it_was(tmp_path: Path) -> None:
    program = WHERE + 'tell("agent", *sorted(os.sched_getaffinity(os.getppid())))'
    options = ("--numa-binding", "exclusive", "--nproc-per-node", str(CORES))
    run = ended(agent(tmp_path, *options, program=program, env=HIDDEN), 0)
    assert {*run.told("agent")} == {" ".join(map(str, sorted(os.sched_getaffinity(0))))}


def test_what_this_machine_can_not_do_is_one_line_and_no_worker_starts(tmp_path: Path) -> None:
    options = ("--numa-binding", "exclusive", "--nproc-per-node", str(len(HERE) + 1), "--quiet")
    run = ended(agent(tmp_path, *options, program=WHERE, env=HIDDEN), 2)
    assert run.out == ""
    [line] = run.err.splitlines()
    assert line.startswith("rallypoint: --numa-binding exclusive: NUMA node ")
    assert line.endswith(" exclusive shares; leave it out")


ABSENT = frozenset({1023})
"""A CPU that the kernel refuses here."""


def test_cpus_that_went_away_are_an_error_unless_that_was_allowed() -> None:
    refused = WorkerCommand(["true"], {"PATH": os.defpath}, cpus=ABSENT)
    with pytest.raises(WorkerStartError, match="cannot bind a worker to the CPUs 1023") as caught:
        spawn_workers([refused], None)
    assert caught.value.stage is Stage.CPUS
    allowed = WorkerCommand(["true"], {"PATH": os.defpath}, cpus=ABSENT, unbound_if_refused=True)
    [worker] = spawn_workers([allowed], None)
    assert os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == 0
    assert reap_if_exited(worker.pid)


class TorchsOptions:
    """`torch.numa.binding.NumaOptions`, whose modes are texts too."""

    affinity_mode = "exclusive"
    should_fall_back_if_binding_fails = False


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("options", [NumaOptions(AffinityMode.EXCLUSIVE), TorchsOptions()])
def test_start_processes_binds_too(
    tmp_path: Path, options: NumaOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    show = "import os; print(*sorted(os.sched_getaffinity(0)))"
    ranks = range(min(2, CORES))
    args, envs = dict.fromkeys(ranks, ("-c", show)), {rank: dict[str, str]() for rank in ranks}
    with pytest.warns(UserWarning, match="the workers are spread over"):
        context = start_processes("job", sys.executable, args, envs, specs, numa_options=options)
    result = context.wait(60.0)
    context.close()
    assert result is not None
    texts = [Path(result.stdouts[rank]).read_text().split() for rank in ranks]
    assert all(texts)
    assert sum(map(len, texts)) == len(set().union(*texts))


PROGRAM = """
def where():
    return sorted(os.sched_getaffinity(0))
---
from rallypoint.errors import ParameterError
from rallypoint.elastic.multiprocessing import AffinityMode, NumaOptions
os.environ["CUDA_VISIBLE_DEVICES"] = ""
numa = NumaOptions(AffinityMode.EXCLUSIVE)
for cpus in elastic_launch(LaunchConfig(1, 1, {count}, numa_options=numa), where)().values():
    tell("cpus", 0, *cpus)
try:
    elastic_launch(LaunchConfig(1, 1, 1, numa_options="node"), where)()
except ParameterError as error:
    tell("refused", error)
"""


def test_jobs_that_a_program_launches_are_bound_if_it_asks(tmp_path: Path) -> None:
    run = ended(program(tmp_path, PROGRAM.replace("{count}", str(min(2, CORES)))), 0)
    found = [set(line.split()[1:]) for line in run.told("cpus")]
    assert all(found)
    assert sum(map(len, found)) == len(set().union(*found))
    modes = "node, socket, exclusive, core-complex"
    [refused] = run.told("refused")
    assert refused == f"numa_options='node': needs a NumaOptions with a mode of {modes}"
