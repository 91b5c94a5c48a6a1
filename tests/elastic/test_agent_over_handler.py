"""Agents whose nodes meet by the handler of another package: among them one that has the library's
store of a file between peers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, Option, wait_until
from tests.harness.commands import is_one_line_with, rallypoint
from tests.harness.one_agent import agent, ended
from tests.harness.plug_ins import offer_handlers
from tests.harness.proc import name_of

KEEP_ALIVE = "keep_alive_interval=0.3,keep_alive_max_attempt=4"
ALL_REDUCE = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
os.write(1, f"sum {value.item():g} of {dist.get_world_size()}\\n".encode())
dist.destroy_process_group()
"""
WORKER = """
import os
e = os.environ
tell("rank", e["RANK"], e["WORLD_SIZE"], e["TORCHELASTIC_RESTART_COUNT"], e["MASTER_ADDR"])
"""


def by_file(cluster: Cluster, **options: Option) -> None:
    """The nodes of this cluster meet in a file."""
    cluster.env |= offer_handlers(cluster.folder)
    cluster.options |= {
        "rdzv_backend": "peers",
        "rdzv_endpoint": str(cluster.folder),
        "rdzv_conf": f"last_call_timeout=0.5,{KEEP_ALIVE}",
        "local_addr": "127.0.0.1",
        "join_settle": None,
        "min_growth_interval": None,
        "restart_grace": 2,
        **options,
    }


def ranks(cluster: Cluster, round_: int, count: int) -> list[tuple[int, str]]:
    workers = cluster.wait_workers(count, round=round_)
    assert {worker.env["WORLD_SIZE"] for worker in workers} == {str(count)}
    assert len({worker.store for worker in workers}) == 1
    return [(worker.rank, worker.node) for worker in workers]


def test_A2_a_killed_worker_restarts_both_nodes_that_meet_in_a_file_and_both_name_it(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes=2, max_restarts=1)
    a, b = (cluster.agent(name, 2) for name in "ab")
    first = ranks(cluster, 0, 4)
    assert [rank for rank, _ in first] == [0, 1, 2, 3]
    assert first[0][1] == first[1][1] != first[2][1] == first[3][1]
    cluster.order("os.kill(os.getpid(), 9)", round=0, rank=3)
    assert ranks(cluster, 1, 4) == first, "those who stay keep their ranks"
    assert not any(worker.is_alive for worker in cluster.workers(0))
    counts = {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in cluster.workers(1)}
    assert counts == {"1"}
    why = f"rank 3 (node {first[3][1]}, local rank 1) was killed by SIGKILL"
    for one in (a, b):
        assert why in one.wait_event("round_ended", round=0).message
        assert why in one.wait_event("round_joined", round=1).message
    cluster.end_well(a, b)
    spent = {agent.name: agent.verdict["restarts"] for agent in (a, b)}
    assert spent == {"a": 1, "b": 1}, "the budget is the job's"


def test_W12_a_node_that_has_finished_runs_again_when_another_restarts(cluster: Cluster) -> None:
    """torch's would sit in its exit barrier for 300 s, then close the job."""
    by_file(cluster, nnodes=2, max_restarts=1)
    nodes = {name: cluster.agent(name) for name in "ab"}
    first, second = cluster.wait_workers(2, round=0)
    cluster.order("sys.exit(0)", round=0, rank=0)
    nodes[first.node].wait_event("succeeded", round=0)
    cluster.order("sys.exit(3)", round=0, rank=1)
    assert ranks(cluster, 1, 2) == [(0, first.node), (1, second.node)]
    cluster.end_well(*nodes.values())


def test_A3_a_store_that_is_killed_costs_no_budget_of_nodes_that_meet_in_a_file(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes=2, rdzv_conf=f"use_agent_store=False,{KEEP_ALIVE}")
    nodes = {name: cluster.agent(name) for name in "ab"}
    first = ranks(cluster, 0, 2)
    cluster.order("from rallypoint import worker; worker.store().set('k', b'v')", round=0)

    def stores() -> list[int]:
        return [pid for pid in cluster.processes() if name_of(pid) == "rally-store-0"]

    os.kill(wait_until(stores, "the process of the store")[0], signal.SIGKILL)
    killed = f"the process of the round store was killed by SIGKILL on node {first[0][1]}"
    nodes[first[0][1]].wait_event("round_ended", killed, round=0)
    assert ranks(cluster, 1, 2) == first
    counts = {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in cluster.workers(1)}
    assert counts == {"0"}
    for one in nodes.values():
        one.wait_event("round_joined", killed, round=1)
    cluster.end_well(*nodes.values())


def test_A14_nodes_that_meet_in_a_file_tell_each_other_the_ports_of_each_round(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes=2, max_restarts=1, env_style="jax,tensorflow")
    nodes = [cluster.agent(name) for name in "ab"]
    seen: set[str] = set()
    for number in range(2):
        assert len(ranks(cluster, number, 2)) == 2
        environs = [worker.env for worker in cluster.workers(number)]
        (at,) = {environ["JAX_COORDINATOR_ADDRESS"] for environ in environs}
        clusters = [json.loads(environ["TF_CONFIG"])["cluster"] for environ in environs]
        assert clusters[0] == clusters[1]
        fresh = {at, *clusters[0]["worker"]}
        assert len(fresh) == 3
        assert not fresh & seen
        seen |= fresh
        if not number:
            cluster.order("os.kill(os.getpid(), 9)", round=0, rank=1)
    cluster.end_well(*nodes)


def test_a_failure_without_budget_ends_all_nodes_with_its_cause(cluster: Cluster) -> None:
    by_file(cluster, nnodes=2)
    a, b = (cluster.agent(name) for name in "ab")
    culprit = cluster.wait_workers(2, round=0)[1]
    cluster.order("sys.exit(7)", rank=1)
    assert [agent.wait_exit() for agent in (a, b)] == [1, 1]
    for one in (a, b):
        cause = one.verdict["cause"]
        assert (cause["node"], cause["rank"], cause["exit_code"]) == (culprit.node, 1, 7)
    late = cluster.agent("c")
    assert late.wait_exit() == 75
    assert "give another --rdzv-id" in late.verdict["reason"]
    assert late.workers() == []


def test_R3_F2_the_survivor_of_a_killed_agent_names_it_and_goes_on_alone(cluster: Cluster) -> None:
    """The handler's own lease tells; and a fresh node takes the vacant place."""
    by_file(cluster, nnodes="1:2")
    cluster.options["rdzv_conf"] = f"last_call_timeout=600,{KEEP_ALIVE}"
    a, b = (cluster.agent(name) for name in "ab")
    ranks(cluster, 0, 2)
    b.kill()
    assert ranks(cluster, 1, 1) == [(0, "a")]
    died = "node b was lost: its agent died, and its workers with it"
    a.wait_event("round_ended", died, round=0)
    a.wait_event("round_joined", died, round=1)
    c = cluster.agent("c")
    assert ranks(cluster, 2, 2) == [(0, "a"), (1, "c")]
    a.wait_event("round_ended", "1 more node joined", round=1)
    for one in (a, c):
        one.wait_event("round_joined", "1 more node joined", round=2)
    cluster.end_well(a, c)
    assert a.verdict["restarts"] == 0


LONG = "keep_alive_interval=200,last_call_timeout=600"
"""A handler that does not notice by itself that a node is gone."""


@pytest.mark.parametrize("victim", [0, 1], ids=["rank 0", "the other"])
def test_F2_a_killed_agent_is_noticed_at_once_whatever_the_lease_of_the_handler(
    cluster: Cluster, victim: int
) -> None:
    by_file(cluster, nnodes="1:2", rdzv_conf=LONG, lease=600)
    nodes = {name: cluster.agent(name) for name in "ab"}
    first = ranks(cluster, 0, 2)
    killed = first[victim][1]
    survivor = nodes[first[1 - victim][1]]
    nodes[killed].kill()
    said = survivor.wait_event("round_ended", f"node {killed} was lost: it", round=0).message
    assert ("it hosted the round" in said) == (victim == 0)
    survivor.wait_event("workers_stopped", round=0)
    survivor.signal(signal.SIGTERM)
    assert survivor.wait_exit() == 128 + signal.SIGTERM


def test_V1_people_look_at_a_job_that_meets_in_a_file_and_restart_and_drain_it(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes="1:2", rdzv_id=f"looked-at-{os.getpid()}")
    cluster.options["rdzv_conf"] = f"last_call_timeout=600,{KEEP_ALIVE}"
    nodes = {name: cluster.agent(name) for name in "ab"}
    first = [name for _, name in ranks(cluster, 0, 2)]
    cluster.order(r"os.write(1, b'first words\n')", round=0)
    wait_until(lambda: "first words" in here(cluster, "logs").stdout, "the workers' words")
    assert "2 of 2 in the round" in here(cluster, "status").stdout
    stacks = here(cluster, "stacks").stdout
    assert "(a" in stacks, "its worker"
    assert "b)" in stacks, "that of the other node"
    assert "round 0: 2 nodes, 2 workers" in here(cluster, "events").stdout
    assert "round 1 has begun: 2 nodes" in here(cluster, "restart").stdout
    assert [name for _, name in ranks(cluster, 1, 2)] == first
    told = here(cluster, "status").stdout
    assert "a person asked for a restart" in told
    assert "round 0     ended by request" in told, "the next coordinator knows of the rounds before"
    done = here(cluster, "drain", first[0])
    assert f"node {first[0]} has left" in done.stdout, (
        "it hosts the coordinator, and the job goes on"
    )
    assert nodes[first[0]].wait_exit() == 128 + signal.SIGTERM
    assert ranks(cluster, 2, 1) == [(0, first[1])]
    cluster.end_well(nodes[first[1]])


def test_V1_a_checkpoint_is_asked_for_and_the_job_is_cancelled_from_beside(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes=2, rdzv_id=f"cancelled-{os.getpid()}")
    a, b = (cluster.agent(name) for name in "ab")
    ranks(cluster, 0, 2)
    done = here(cluster, "checkpoint")
    assert "no worker checks for checkpoint requests" in done.stderr + done.stdout
    assert here(cluster, "cancel").returncode == 0
    codes = {agent.wait_exit() for agent in (a, b)}
    assert codes == {130}
    assert "a person cancelled it" in b.verdict["reason"]


def here(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """A command about this job, which is found on this machine."""
    return rallypoint(cluster, *words, "--job", str(cluster.options["rdzv_id"]))


def test_A2_the_budget_outlives_the_coordinators_of_rounds_and_the_node_of_rank_0(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes="1:2", max_restarts=1)
    cluster.options["rdzv_conf"] = f"last_call_timeout=600,{KEEP_ALIVE}"
    nodes = {name: cluster.agent(name) for name in "ab"}
    first = ranks(cluster, 0, 2)
    cluster.order("sys.exit(3)", round=0, rank=1)
    ranks(cluster, 1, 2)
    nodes[first[0][1]].kill()
    survivor = nodes[first[1][1]]
    assert ranks(cluster, 2, 1) == [(0, first[1][1])]
    cluster.order("sys.exit(4)", round=2, rank=0)
    assert survivor.wait_exit() == 1
    assert survivor.verdict["restarts"] == 1
    assert survivor.verdict["cause"]["exit_code"] == 4


FORMER = """
import sys, msgspec
sys.argv += ["--node-id", "former"]
import someone_elses
from rallypoint.elastic.rendezvous.api import RendezvousParameters
conf = {"last_call_timeout": "0.5", "keep_alive_interval": "0.3", "keep_alive_max_attempt": "4"}
where = RendezvousParameters("peers", sys.argv[1], "job", 2, 2, "127.0.0.1", **conf)
handler = someone_elses.peers()(where)
store, rank, size = handler.next_rendezvous()
info = {"node_id": "former", "workers": 1, "role": "default", "incarnation": 7, "last_round": -1,
        "restarts": 0, "address": "", "port": 0, "secret": b""}
store.set(f"rallypoint/node/{rank}", msgspec.msgpack.encode(info))
others = store.get(f"rallypoint/node/{1 - rank}")
print("an agent of before reads", type(msgspec.msgpack.decode(others)).__name__, flush=True)
"""
"""A node as it was when none hosted a coordinator: its info is a table, and it reads no other."""


def test_R7_an_agent_of_a_version_without_coordinators_is_refused_with_a_line(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes=2)
    new = cluster.agent("a")
    words = [sys.executable, "-c", FORMER, str(cluster.folder)]
    former = subprocess.run(
        words, env={**os.environ, **cluster.env}, capture_output=True, text=True, timeout=60
    )
    assert former.stdout == "an agent of before reads list\n", former.stderr
    assert new.wait_exit() == 75
    assert "does not run this version of rallypoint: install the same" in new.verdict["reason"]
    assert new.workers() == []


def test_F5_a_node_that_was_paused_for_too_long_comes_back(cluster: Cluster) -> None:
    by_file(cluster, nnodes="1:2")
    cluster.options["rdzv_conf"] = f"last_call_timeout=600,{KEEP_ALIVE}"
    a, b = (cluster.agent(name) for name in "ab")
    ranks(cluster, 0, 2)
    a.pause()
    assert ranks(cluster, 1, 1) == [(0, "b")]
    a.resume()
    assert ranks(cluster, 2, 2) == [(0, "b"), (1, "a")]
    assert not any(worker.is_alive for round_ in (0, 1) for worker in cluster.workers(round_))
    cluster.end_well(a, b)


def test_F2_workers_do_not_outlive_a_file_that_can_not_be_read(cluster: Cluster) -> None:
    where = cluster.folder / "meet"
    by_file(cluster, rdzv_endpoint=str(where), nnodes="1", lease=1)
    a = cluster.agent("a")
    (worker,) = cluster.wait_workers(1, round=0)
    where.write_bytes(b"\xff" * 4096)
    assert a.wait_exit() == 75
    assert "the rendezvous handler 'peers' failed" in a.verdict["reason"]
    assert not worker.is_alive


def test_a_node_that_gets_SIGTERM_leaves_and_the_other_names_it_and_goes_on(
    cluster: Cluster,
) -> None:
    by_file(cluster, nnodes="1:2")
    cluster.options["rdzv_conf"] = "last_call_timeout=600,keep_alive_interval=20"
    a, b = (cluster.agent(name) for name in "ab")
    ranks(cluster, 0, 2)
    b.signal(signal.SIGTERM)
    assert b.wait_exit() == 128 + signal.SIGTERM
    assert ranks(cluster, 1, 1) == [(0, "a")]
    a.wait_event("round_ended", "node b is leaving: it got SIGTERM", round=0)
    cluster.end_well(a)


def test_SIGINT_on_one_node_cancels_the_job_that_meets_in_a_file(cluster: Cluster) -> None:
    by_file(cluster, nnodes=2)
    a, b = (cluster.agent(name) for name in "ab")
    ranks(cluster, 0, 2)
    a.signal(signal.SIGINT)
    assert [agent.wait_exit() for agent in (a, b)] == [130, 130]
    assert "cancelled on node a" in b.verdict["reason"]


@pytest.mark.frameworks
@pytest.mark.parametrize("own", [False, True], ids=["the handler's store", "the agent's store"])
def test_torch_reduces_over_two_nodes_that_meet_in_a_file(
    cluster: Cluster, own: bool, torch_python: str
) -> None:
    by_file(cluster, nnodes=2, rdzv_conf=f"use_agent_store={not own},{KEEP_ALIVE}")
    script = cluster.folder / "reduce.py"
    script.write_text(ALL_REDUCE)
    env = {"PYTHON_EXEC": torch_python}
    a, b = (cluster.agent(name, script=[str(script)], env=env) for name in "ab")
    assert [agent.wait_exit() for agent in (a, b)] == [0, 0]
    assert [line for one in (a, b) for line in one.stdout_lines] == ["sum 3 of 2"] * 2


FOREIGN = ("--rdzv-endpoint=anything", "--rdzv-conf=colour=blue")


def test_a_handler_of_another_package_with_the_five_oldest_methods(tmp_path: Path) -> None:
    env = offer_handlers(tmp_path)
    options = ("--rdzv-backend=five", *FOREIGN, "--nproc-per-node=2")
    run = ended(agent(tmp_path, *options, program=WORKER, env=env), 0)
    assert sorted(run.told("rank")) == ["0 2 0 127.0.0.1", "1 2 0 127.0.0.1"]
    assert run.out.splitlines().count("closed") == 1, "who comes late must know, and is told once"


@pytest.mark.frameworks
def test_its_workers_restart_and_reach_the_store_of_their_agent(
    tmp_path: Path, torch_python: str
) -> None:
    program = WORKER + "import sys\n" + ALL_REDUCE
    program += "sys.exit(3 if e['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n"
    options = ("--rdzv-backend=five", *FOREIGN, "--nproc-per-node=2", "--max-restarts=1")
    env = {**offer_handlers(tmp_path), "PYTHON_EXEC": torch_python}
    run = ended(agent(tmp_path, *options, program=program, env=env), 0)
    assert run.told("sum") == ["3 of 2"] * 4
    assert {line.split()[2] for line in run.told("rank")} == {"0", "1"}


def test_a_handler_that_can_not_wake_its_agent_is_asked_whether_the_round_is_over(
    tmp_path: Path,
) -> None:
    program = WORKER + "import time\nif e['RALLYPOINT_ROUND'] == '0': time.sleep(600)"
    env = offer_handlers(tmp_path)
    run = ended(agent(tmp_path, "--rdzv-backend=changing", *FOREIGN, program=program, env=env), 0)
    assert run.told("rank") == ["0 1 0 127.0.0.1"] * 2, "it costs no budget"


@pytest.mark.parametrize(
    ("name", "parts"),
    [("broken", ["'broken' failed: KeyError"]), ("unready", ["'unready' returned None"])],
)
def test_a_handler_that_breaks_its_contract_is_named(
    tmp_path: Path, name: str, parts: list[str]
) -> None:
    options = (f"--rdzv-backend={name}", *FOREIGN)
    run = ended(agent(tmp_path, *options, program=WORKER, env=offer_handlers(tmp_path)), 75)
    assert is_one_line_with(run.err, *parts)
    assert not run.told("rank")


def test_a_handler_that_blocks_for_ever_does_not_hold_its_agent(tmp_path: Path) -> None:
    """Neither when the job has ended, nor when a signal tells the agent to go."""
    env = offer_handlers(tmp_path)
    run = ended(agent(tmp_path, "--rdzv-backend=stuck", *FOREIGN, program=WORKER, env=env), 0)
    assert "Traceback" not in run.err
    assert "destroyed" not in run.err
    program = WORKER + "import time\ntime.sleep(600)"
    with agent(tmp_path, "--rdzv-backend=stuck", *FOREIGN, program=program, env=env) as run:
        run.wait_told("rank")
        run.send(signal.SIGINT)
        assert run.wait() == 128 + signal.SIGINT
    assert "waiting" not in run.err
    options = ("--rdzv-backend=stuck", *FOREIGN[:1], "--rdzv-conf=colour=blue,meets=never")
    with agent(tmp_path, *options, program=WORKER, env=env) as run:
        run.wait_told("meeting")
        run.send(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
    assert not run.told("rank")


def test_a_node_that_is_not_needed_says_so_and_ends_well(tmp_path: Path) -> None:
    options = ("--rdzv-backend=unneeded", *FOREIGN)
    run = ended(agent(tmp_path, *options, program=WORKER, env=offer_handlers(tmp_path)), 0)
    assert is_one_line_with(run.err, "this node was not needed: the job ended without it")
    assert not run.told("rank")


@pytest.mark.parametrize(
    ("words", "parts", "code"),
    [
        (["--rdzv-backend=fife"], ["fife", "tcp, c10d, static, file"], 2),
        (["--rdzv-backend=peers", "--rdzv-endpoint=no/such/f"], ["no/such/f"], 75),
        (["--rdzv-backend=peers", "--rdzv-endpoint=f", "--rdzv-conf=x"], ["x", "KEY=VALUE"], 2),
        (
            ["--rdzv-backend=peers", "--rdzv-endpoint=f", "--rdzv-conf=join_timeout=x"],
            ["join_timeout='x'"],
            2,
        ),
    ],
    ids=str,
)
def test_a_mistake_with_a_handler_is_one_line(
    tmp_path: Path, words: list[str], parts: list[str], code: int
) -> None:
    run = ended(agent(tmp_path, *words, program=WORKER, env=offer_handlers(tmp_path)), code)
    assert is_one_line_with(run.err, *parts)
    assert not run.told("rank")


def test_F8_the_file_in_which_nodes_meet_is_this_user_s_alone(tmp_path: Path) -> None:
    options = ("--rdzv-backend=peers", "--rdzv-endpoint=f")
    ended(agent(tmp_path, *options, program=WORKER, env=offer_handlers(tmp_path)), 0)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["open to others", "a link", "of another user"])
def test_F8_nodes_do_not_meet_in_a_file_that_others_could_have_written(
    tmp_path: Path, kind: str
) -> None:
    """In a directory that is shared anybody can foresee its name."""
    where = tmp_path / "shared"
    where.mkdir()
    file = where / "rallypoint-rendezvous-job"
    if kind == "a link":
        file.symlink_to(tmp_path / "mine")
    else:
        file.touch(0o666 if kind == "open to others" else 0o600)
    if kind == "open to others":
        file.chmod(0o666)
    if kind == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(file, 12345, -1)
    options = ("--rdzv-backend=peers", f"--rdzv-endpoint={where}", "--rdzv-id=job")
    run = ended(agent(tmp_path, *options, program=WORKER, env=offer_handlers(tmp_path)), 2)
    says = {
        "open to others": f"mode 0666): run `chmod 600 {file}`",
        "a link": f"{file} is a symbolic link: name another one",
        "of another user": f"{file} belongs to user 12345, not to you",
    }
    assert is_one_line_with(run.err, says[kind])
    assert not run.told("rank")
    assert not (tmp_path / "mine").exists()


def test_nodes_that_do_not_come_are_waited_for_and_named(tmp_path: Path) -> None:
    options = ("--nnodes=2", "--rdzv-backend=peers", "--rdzv-endpoint=f", "--log-format=json")
    conf, env = "--rdzv-conf=join_timeout=1", offer_handlers(tmp_path)
    run = ended(agent(tmp_path, *options, conf, program=WORKER, env=env), 75)
    verdict = json.loads(run.err.splitlines()[-1])
    assert verdict["outcome"] == "timed out"
    assert "1 s" in verdict["reason"]
    assert not run.told("rank")


def test_a_signal_while_nobody_else_comes(tmp_path: Path) -> None:
    where = f"--rdzv-endpoint={tmp_path}"
    options = ("--nnodes=2", "--rdzv-backend=peers", where, "--log-format=json")
    with agent(tmp_path, *options, program=WORKER, env=offer_handlers(tmp_path)) as run:
        run.wait_said("waiting for the next round")
        wait_until(lambda: list(tmp_path.glob("rallypoint-rendezvous-*")), "the file")
        run.send(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
