"""One task of a Slurm step: the facts in its environment, and the options that follow. Pure.

Only the environment is read: a container lacks Slurm's commands and its configuration. The
variables are those of a *step* (`srun`): in the batch script itself, where some of them are set
too, a command is started once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from rallypoint.core.given import Given
from rallypoint.core.text import count
from rallypoint.errors import UsageError
from rallypoint.integrations.slurm_nodes import node_names

_FIRST_PORT, _PORTS = 20_000, 10_000
"""The first port and the number of ports for coordinators, below the range that systems assign
automatically."""
_STEP_STRIDE = 97
_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_HAS_DEVICES = ("SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS")


class Step(Struct, frozen=True):
    """The facts that a task knows about its Slurm step."""

    job: int
    step: str
    restarts: int
    """The number of times that Slurm has requeued the job."""
    tasks: int
    nodes: tuple[str, ...]
    node: str
    task: int
    task_on_node: int
    node_list: Given
    cluster: str
    further: dict[str, Given]
    """Options from variables that not every step has: the switches above this node, the number of
    workers (one for each device), the end of the allocation."""

    @property
    def run_id(self) -> str:
        """The run id: the same for all tasks, and a new one when Slurm requeues the job."""
        return run_id_of(self.job, self.step, self.restarts)

    @property
    def port(self) -> int:
        """The port of the coordinator on the first node.

        Neighbouring jobs and steps have others.
        """
        return port_of(self.job, self.step)


def run_id_of(job: int, step: str, restarts: int) -> str:
    """Return the run id of a Slurm step. `restarts` is how often Slurm has requeued its job."""
    again = f"-restart-{restarts}" if restarts else ""
    return f"slurm-{job}.{step}{again}"


def port_of(job: int, step: str) -> int:
    """Return the port of the step's coordinator; neighbouring jobs and steps have others."""
    number = int(step) if _is_number(step) else 0
    return _FIRST_PORT + (job + _STEP_STRIDE * number) % _PORTS


def read_step(environ: Mapping[str, str]) -> Step:
    """Read the facts of this task from the variables of its Slurm step.

    Raises UsageError for a missing or invalid variable, and for a heterogeneous job.
    """

    def given(name: str) -> Given:
        if not environ.get(name):
            raise UsageError(f"--scheduler slurm: {name} is not set: start this with srun")
        return Given(environ[name], f"{name}={environ[name]}")

    def number(name: str, default: int | None = None) -> int:
        if default is not None and name not in environ:
            return default
        text = given(name)
        if not _is_number(text.text):
            raise text.wrong("Slurm gives a number there")
        return int(text.text)

    if number("SLURM_HET_SIZE", 1) > 1:
        raise UsageError(
            f"{given('SLURM_HET_SIZE').origin}: Slurm does not tell the tasks of a heterogeneous"
            " job what the others have: give --nnodes, --rdzv-id and --rdzv-endpoint"
        )
    node_list = given("SLURM_STEP_NODELIST")
    try:
        nodes = node_names(node_list.text)
    except ValueError as error:
        raise node_list.wrong(str(error)) from None
    return Step(
        job=number("SLURM_JOB_ID"),
        step=environ.get("SLURM_STEP_ID", "0"),
        restarts=number("SLURM_RESTART_COUNT", 0),
        tasks=number("SLURM_STEP_NUM_TASKS"),
        nodes=nodes,
        node=given("SLURMD_NODENAME").text,
        task=number("SLURM_PROCID", 0),
        task_on_node=number("SLURM_LOCALID", 0),
        node_list=node_list,
        cluster=environ.get("SLURM_CLUSTER_NAME", "cluster"),
        further=dict(_further(environ)),
    )


def options_of(step: Step) -> dict[str, Given]:
    """Return the option values that follow from the step; the caller prefers given ones.

    By them the first node of the step hosts the coordinator.
    """
    job = f"SLURM_JOB_ID={step.job}"
    where = f"{step.nodes[0]}:{step.port}"
    found = {
        "--rdzv-id": Given(step.run_id, job),
        "--nnodes": Given(str(step.tasks), f"SLURM_STEP_NUM_TASKS={step.tasks}"),
        "--node-id": Given(_node_id(step), f"SLURMD_NODENAME={step.node}"),
        "--rdzv-endpoint": Given(where, f"{step.node_list.origin}, {job}"),
    }
    return found | step.further


def refuse_a_task_for_each_worker(step: Step) -> None:
    """Raise UsageError if the Slurm step has more tasks than nodes.

    The first task's error has the fix; the others' point to it.
    """
    if step.tasks <= len(step.nodes):
        return
    started = f"srun has started {step.tasks} tasks on {count(len(step.nodes), 'node')}"
    if step.task:
        raise UsageError(f"{started}: task 0 prints what to do")
    each = step.tasks // len(step.nodes)
    raise UsageError(
        f"{started}, and one agent starts all workers of a node: srun --ntasks-per-node 1"
        f" rallypoint run --nproc-per-node {each} ... (or give --nproc-per-node 1: a worker a task)"
    )


def _node_id(step: Step) -> str:
    """Return the node id; a further agent on the same node gets its local number as a suffix."""
    return f"{step.node}.{step.task_on_node}" if step.task_on_node else step.node


def _further(environ: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    address = environ.get("SLURM_TOPOLOGY_ADDR", "")
    if switches := address.rpartition(".")[0]:
        yield "--topology", Given(switches, f"SLURM_TOPOLOGY_ADDR={address}")
    if (workers := _workers(environ)) is not None:
        yield "--nproc-per-node", workers
    if end := environ.get("SLURM_JOB_END_TIME"):
        yield "--stop-at", Given(end, f"SLURM_JOB_END_TIME={end}")


def _is_number(text: str) -> bool:
    """Return whether the text is a whole number of at most 18 digits.

    It fits into 64 bits; `int` refuses very long texts.
    """
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _workers(environ: Mapping[str, str]) -> Given | None:
    if not any(environ.get(name) for name in _HAS_DEVICES):
        return None
    for name in _DEVICES:
        if devices := environ.get(name):
            return Given(str(len(devices.split(","))), f"{name}={devices}")
    on_node = environ.get("SLURM_GPUS_ON_NODE", "")
    if _is_number(on_node) and int(on_node):
        return Given(on_node, f"SLURM_GPUS_ON_NODE={on_node}")
    return None
