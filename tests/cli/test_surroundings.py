"""What a scheduler says of a job, where the command line does not (`--scheduler`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.command_line import MACHINE, SameMachine, parse, refusal

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import parse_run
from rallypoint.config import AgentConfig

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NODELIST": "n[08-11]",
    "SLURMD_NODENAME": "n09",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_TOPOLOGY_ADDR": "n09",
}
"""As Slurm 22.05 sets them for one of four tasks."""


class SharedHome(SameMachine):
    def shared_home(self) -> str:
        return "/shared/me/jobs"


def parse_at_home(line: str, **environ: str) -> AgentConfig:
    return parse_run(line.split(), environ, SharedHome())


def test_a_plain_srun_is_one_job_of_all_its_nodes() -> None:
    config = parse("train.py", **STEP)
    meeting = config.rendezvous
    assert meeting.run_id == "slurm-4711.0"
    assert (meeting.min_nodes, meeting.max_nodes) == (4, 4)
    assert meeting.node_id == "n09"
    assert str(meeting.endpoint) == "n08:24711"
    assert meeting.register is None
    assert config.workers.count == 1
    assert config.notices == ()


def test_with_a_shared_home_any_node_may_be_lost_and_a_line_says_so() -> None:
    config = parse_at_home("train.py", **STEP)
    register = config.rendezvous.register
    assert register is not None
    assert register.where == "/shared/me/jobs/big"
    assert config.notices == (
        (
            "the record of the job lies in /shared/me/jobs/big, so that any node may be lost"
            " (--rdzv-backend tcp: the first node hosts the job instead)"
        ),
    )
    by_tcp = parse_at_home("--rdzv-backend tcp train.py", **STEP)
    assert by_tcp.rendezvous.register is None
    assert str(by_tcp.rendezvous.endpoint) == "n08:24711"


def test_a_shared_home_that_takes_no_records_is_named_and_the_first_node_hosts(
    tmp_path: Path,
) -> None:
    """As one that is mounted read-only on the nodes; here a file stands in the way."""

    class FullHome(SharedHome):
        def shared_home(self) -> str:
            return str(tmp_path / "file" / "jobs")

        def why_no_records(self, path: str) -> str:
            return ThisHost.why_no_records(self, path)

    (tmp_path / "file").write_text("")
    config = parse_run(["train.py"], STEP, FullHome())
    assert config.rendezvous.register is None
    assert str(config.rendezvous.endpoint) == "n08:24711"
    (notice,) = config.notices
    says = f"the job ends with its first node, as its record can't be kept: {tmp_path}/file"
    assert notice.startswith(says)
    assert " is not a directory: " in notice
    (tmp_path / "file").unlink()
    register = parse_run(["train.py"], STEP, FullHome()).rendezvous.register
    assert register is not None
    assert register.where == f"{tmp_path}/file/jobs/big"


def test_what_a_person_says_wins_over_the_scheduler() -> None:
    line = "--nnodes 2:3 --rdzv-id digits --node-id me --nproc-per-node 2 train.py"
    config = parse(line, **STEP, SLURM_GPUS_ON_NODE="8")
    meeting = config.rendezvous
    assert (meeting.min_nodes, meeting.max_nodes) == (2, 3)
    assert (meeting.run_id, meeting.node_id, config.workers.count) == ("digits", "me", 2)
    assert str(meeting.endpoint) == "n08:24711"


def test_a_register_that_a_person_names_gets_the_rest_from_the_step() -> None:
    line = "--rdzv-backend file --rdzv-endpoint /shared/jobs train.py"
    meeting = parse(line, **STEP).rendezvous
    assert meeting.register is not None
    assert meeting.register.where == "/shared/jobs"
    assert (meeting.run_id, meeting.max_nodes, meeting.node_id) == ("slurm-4711.0", 4, "n09")
    assert "needs --rdzv-endpoint DIR" in refusal("--rdzv-backend file train.py", **STEP)


@pytest.mark.parametrize(
    ("changed", "run_id", "port"),
    [
        ({"SLURM_RESTART_COUNT": "2"}, "slurm-4711.0-restart-2", 24711),
        ({"SLURM_RESTART_COUNT": "0"}, "slurm-4711.0", 24711),
        ({"SLURM_STEP_ID": "3"}, "slurm-4711.3", 25002),
        ({"SLURM_JOB_ID": "4712", "SLURM_ARRAY_JOB_ID": "4710"}, "slurm-4712.0", 24712),
    ],
)
def test_jobs_that_may_run_at_once_or_again_have_names_and_ports_of_their_own(
    changed: dict[str, str], run_id: str, port: int
) -> None:
    meeting = parse("train.py", **STEP | changed).rendezvous
    assert (meeting.run_id, meeting.endpoint.port) == (run_id, port)


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        ({}, 1),
        ({"SLURM_GPUS_ON_NODE": "8", "CUDA_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"SLURM_STEP_GPUS": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 1),
    ],
    ids=["none", "of the task", "of AMD", "of the node", "set by a person"],
)
def test_a_node_has_a_worker_for_each_gpu_that_slurm_gave(
    devices: dict[str, str], count: int
) -> None:
    assert parse("train.py", **STEP | devices).workers.count == count


def test_nodes_are_ranked_by_the_switches_that_slurm_tells() -> None:
    told = STEP | {"SLURM_TOPOLOGY_ADDR": "s0.s4.n09"}
    assert parse("train.py", **told).rendezvous.topology == "s0.s4"
    assert parse("train.py", **STEP).rendezvous.topology == ""


def test_spares_are_taken_from_the_nodes_of_the_step() -> None:
    meeting = parse("--spares 1 train.py", **STEP).rendezvous
    assert (meeting.min_nodes, meeting.max_nodes) == (3, 3)


def test_a_task_for_each_worker_is_refused_in_one_line_and_one_task_says_what_to_write() -> None:
    many = STEP | {"SLURM_STEP_NUM_TASKS": "16"}
    assert refusal("train.py", **many) == (
        "srun has started 16 tasks on 4 nodes: task 0 prints what to do"
    )
    assert refusal("train.py", **many | {"SLURM_PROCID": "0"}) == (
        "srun has started 16 tasks on 4 nodes, and one agent starts all workers of a node: srun"
        " --ntasks-per-node 1 rallypoint run --nproc-per-node 4 ... (or give --nproc-per-node 1: a"
        " worker a task)"
    )


def test_two_agents_of_one_node_are_told_apart() -> None:
    many = STEP | {"SLURM_STEP_NUM_TASKS": "8"}
    first = parse("--nproc-per-node 2 train.py", **many).rendezvous
    second = parse("--nproc-per-node 2 train.py", **many | {"SLURM_LOCALID": "1"}).rendezvous
    assert (first.node_id, second.node_id) == ("n09", "n09.1")
    assert first.max_nodes == 8


@pytest.mark.parametrize(
    "line",
    [
        "--standalone train.py",
        "--nnodes 1 train.py",
        "--nnodes 2 --rdzv-endpoint gpu1 train.py",
        "--nnodes 2 --node-rank 1 --master-addr gpu1 train.py",
        "--master-port 29500 train.py",
        "--scheduler none train.py",
        "--rdzv-backend theirs --rdzv-endpoint x train.py",
    ],
)
def test_who_says_how_the_nodes_find_each_other_is_believed(line: str) -> None:
    config = parse(line, **STEP)
    assert not config.rendezvous.run_id.startswith("slurm-")
    assert config.rendezvous.node_id is None
    assert not any("slurm" in notice for notice in config.notices)


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"},
        STEP | {"SLURM_STEP_NUM_TASKS": "1"},
        STEP | {"SLURM_PTY_PORT": "41641"},
        STEP | {"RALLYPOINT_INCARNATION": "1"},
        STEP | {"SLURM_STEP_NUM_TASKS": "2(x2)"},
    ],
    ids=["batch script", "one task", "shell of srun --pty", "started by a worker", "no number"],
)
def test_one_plain_command_is_let_through_where_it_is_started_once(environ: dict[str, str]) -> None:
    assert parse("train.py", **environ).rendezvous.max_nodes == 1


BATCH = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_PROCID": "0"}
TOLD = "Slurm has given this job 2 nodes, and this trains on one of them: write srun rallypoint run"


def test_a_batch_script_of_two_nodes_without_srun_is_told_so() -> None:
    assert [one for one in parse("train.py", **BATCH).notices if one.startswith(TOLD)]


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("train.py", BATCH | {"SLURM_JOB_NUM_NODES": "1"}),
        ("train.py", BATCH | {"SLURM_STEP_NUM_TASKS": "1"}),
        ("train.py", BATCH | {"RALLYPOINT_INCARNATION": "1"}),
        ("--standalone train.py", BATCH),
        ("--nnodes 1 train.py", BATCH),
        ("--scheduler none train.py", BATCH),
        ("train.py", {}),
    ],
)
def test_one_node_on_purpose_is_told_nothing(line: str, environ: dict[str, str]) -> None:
    assert not [one for one in parse(line, **environ).notices if "Slurm" in one]


def test_slurm_can_be_asked_for_where_it_would_not_be_recognised() -> None:
    alone = STEP | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n09"}
    config = parse("--scheduler slurm train.py", **alone)
    assert (config.rendezvous.run_id, config.rendezvous.max_nodes) == ("slurm-4711.0", 1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SLURM_HET_SIZE": "2"}, "SLURM_HET_SIZE=2: Slurm does not tell the tasks of a hetero"),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "SLURM_STEP_NODELIST=n[1-: "),
        ({"SLURM_STEP_NODELIST": ""}, "--scheduler slurm: SLURM_STEP_NODELIST is not set: start "),
        ({"SLURM_JOB_ID": "x"}, "SLURM_JOB_ID=x: Slurm gives a number there"),
    ],
)
def test_a_step_that_can_not_be_a_job_is_refused_in_one_line(
    changed: dict[str, str], says: str
) -> None:
    assert refusal("train.py", **STEP | changed).startswith(says)


def test_outside_of_slurm_it_can_not_be_asked_for() -> None:
    assert refusal("--scheduler slurm train.py").endswith(" is not set: start this with srun")
    assert "needs one of auto, slurm" in refusal("--scheduler pbs train.py")


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("--nnodes 4 --master-addr digits-0.digits train.py", 2),
        ("--nnodes 4 --rdzv-backend static --rdzv-endpoint digits-0.digits train.py", 2),
        ("--nnodes 4 --master-addr digits-0.digits --node-rank 1 train.py", 1),
        ("--nnodes 4 --master-addr digits-0.digits --scheduler none train.py", 0),
        ("--nnodes 4 --rdzv-endpoint digits-0.digits train.py", None),
        ("--nnodes 1 --master-addr digits-0.digits --master-port 29500 train.py", 0),
        ("--standalone train.py", None),
    ],
)
def test_a_pod_of_an_indexed_job_has_its_number_as_fixed_rank(line: str, rank: int | None) -> None:
    assert parse(line, JOB_COMPLETION_INDEX="2").rendezvous.node_rank == rank


def test_a_pod_with_a_number_that_is_no_rank_is_refused() -> None:
    line = "--nnodes 2 --master-addr digits-0.digits train.py"
    says = "JOB_COMPLETION_INDEX=2: must be 0..1, as --nnodes is 2"
    assert refusal(line, JOB_COMPLETION_INDEX="2") == says
    assert refusal(line, JOB_COMPLETION_INDEX="x").startswith("JOB_COMPLETION_INDEX=x: needs a w")


def test_under_mpirun_a_line_says_that_each_process_is_a_job_of_its_own() -> None:
    (notice,) = parse("train.py", OMPI_COMM_WORLD_SIZE="4").notices
    assert notice.startswith("mpirun has started this command 4 times, and each runs the whole job")
    under_both = parse_run(["train.py"], STEP | {"OMPI_COMM_WORLD_SIZE": "4"}, MACHINE)
    assert under_both.notices == (notice,)
    assert parse("--standalone train.py", OMPI_COMM_WORLD_SIZE="4").notices == ()
    assert parse("train.py", OMPI_COMM_WORLD_SIZE="1").notices == ()


def test_the_end_of_the_allocation_is_that_which_slurm_tells() -> None:
    told = STEP | {"SLURM_JOB_END_TIME": "1800003600"}
    config = parse("--stop-before 600 train.py", **told)
    assert config.stop.leave_in_s == 3000
    (notice,) = config.notices
    assert notice.endswith(": SLURM_JOB_END_TIME=1800003600, --stop-before 600")
    assert parse("train.py", **told).stop.leave_in_s is None
