"""Jobs in pods, as `rallypoint generate kubernetes` makes them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.harness.cluster import AgentProcess, wait_until
from tests.pods.pods import INFRA, NAME, PORT, Pods

from rallypoint.config import TOKEN_VARIABLE

NOBODY = "10.5.1.77"


def asking(pods: Pods, number: int) -> None:
    """The workers of round 0 look for requests from now on, and save when they are told to."""
    pods.order("from rallypoint import worker", round=0)
    pods.order("worker.drain_requested()", round=0)
    seen = pods.folder / "asking"
    seen.mkdir()
    pods.order(f"open('{seen}/' + me[2], 'w').close()", round=0)
    wait_until(lambda: len(list(seen.iterdir())) == number, "workers that ask")


def save(pods: Pods) -> None:
    pods.order("while not worker.drain_requested(): time.sleep(0.01)", round=0)
    pods.order("worker.checkpoint_saved(1)", round=0)


def lead(pods: list[AgentProcess]) -> AgentProcess:
    """The one that leads."""
    return next(pod for pod in pods if any(event.name == "leads" for event in pod.events))


def restarts(pod: AgentProcess) -> int:
    return int(pod.verdict["restarts"])


@pytest.mark.quick
def test_pods_may_start_in_any_order(tmp_path: Path) -> None:
    with Pods(tmp_path, 3) as pods:
        started = []
        for index in random.sample(range(3), 3):
            started.append(pods.start(f"{NAME}-{index}"))
            started[-1].wait_event("notice", "health checks are answered")
        workers = pods.wait_workers(3, round=0)
        assert [worker.node for worker in workers] == [f"{NAME}-{index}-0" for index in range(3)]
        assert {worker.env["RALLYPOINT_RUN_ID"] for worker in workers} == {NAME}
        for pod in started:
            assert pods.is_healthy(pods.address_of(pod))
        pods.end_well(*started)


def finds(text: str, ask: Callable[[], str]) -> bool:
    return re.search(text, ask(), re.DOTALL | re.MULTILINE) is not None


@pytest.mark.parametrize("backend", ["kubernetes", "tcp"])
def test_kubectl_exec_shows_the_job_from_any_pod_without_an_option(
    tmp_path: Path, backend: str
) -> None:
    with Pods(tmp_path, 2, "--rdzv-backend", backend) as pods:
        homes = {name: tmp_path / name for name in (f"{NAME}-0", f"{NAME}-1")}
        for home in homes.values():  # No pod sees the files of another one.
            home.mkdir()
        started = [
            pods.start(name, env={"HOME": str(home), "TMPDIR": str(home)})
            for name, home in homes.items()
        ]
        pods.wait_workers(2, round=0)
        pods.order("print('hello from', me[2], flush=True)")
        told = {
            "status": rf"job {NAME}: running .*^ +running: {NAME}-0-0, {NAME}-1-0$",
            "events": r"round 0: 2 nodes, 2 workers$",
            "logs": r"hello from .*hello from ",
            "stacks": r"ranks? 0",
        }
        for pod in started:
            for command, text in told.items():
                ask = partial(pods.execute, pod, homes[pod.name], "rallypoint", command)
                wait_until(partial(finds, text, ask), f"{text} by {command}")
        pods.end_well(*started)


def test_the_command_of_the_docs_runs_in_pods(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "kubernetes.md"
    (line,) = [line for line in page.read_text().splitlines() if line.startswith("rallypoint run ")]
    with Pods(tmp_path, 4) as pods:
        pods.may_use_all_records()
        pods.container["command"] = line.split()
        pods.end_well(*pods.pods(4))


def test_the_program_of_the_docs_finds_the_api_server_of_its_pod(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    (text,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    store = "from rallypoint.elastic.stores import HashStore; store = HashStore()\n"
    shows = "print(handler.get_backend(), handler.get_run_id(), backend.get_state())\n"
    (tmp_path / "program.py").write_text(store + text + shows)
    with Pods(tmp_path, 1) as pods:
        pods.may_use_all_records()
        ran = pods.start("a", command=["program"], env={"PYTHONPATH": str(tmp_path)})
        assert ran.wait_exit() == 0
        assert ran.stdout_lines == ["kubernetes my-job None"]


def test_a_job_runs_again_under_its_name_with_the_record_that_is_there(tmp_path: Path) -> None:
    """`kubectl delete job` leaves the record, and the pods may not make another one."""
    with Pods(tmp_path, 2) as pods:
        pods.end_well(*pods.pods(2))
        again = pods.pods(2)
        assert [pod.wait_exit() for pod in again] == [0, 0]
        for pod in again:
            pod.wait_event("workers_started", round=0)


@pytest.mark.parametrize("by", ["kubeflow", "index"])
def test_fixed_ranks_come_from_what_a_controller_says(tmp_path: Path, by: str) -> None:
    """Kubeflow Trainer by its variables, in a runtime whose command is `rallypoint run train.py`;
    an Indexed Job by the number of the pod. Pod 1 is there first."""
    first, port = f"{NAME}-0.{NAME}", str(PORT)
    with Pods(tmp_path, 2) as pods:
        pods.container["env"] = [e for e in pods.container["env"] if e["name"] == TOKEN_VARIABLE]
        pods.container["command"] = ["rallypoint", "run", "train.py"]
        if by == "index":
            options = ["--nnodes=2", f"--master-addr={first}", f"--master-port={port}"]
            pods.container["command"][2:2] = options
        started = []
        for index in (1, 0):
            env = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(index)}
            env |= {"PET_MASTER_ADDR": first, "PET_MASTER_PORT": port}
            env = env if by == "kubeflow" else {}
            started.append(pods.start(f"{NAME}-{index}", env=env))
        workers = pods.wait_workers(2, round=0)
        assert {worker.env["MASTER_ADDR"] for worker in workers} == {first}
        assert [[w.rank for w in pod.workers()] for pod in started] == [[1], [0]]
        pods.end_well(*started)


def test_pods_are_ranked_by_the_zone_of_their_machine_and_then_by_the_machine(
    tmp_path: Path,
) -> None:
    with Pods(tmp_path, 3) as pods:
        pods.zones |= {f"{NAME}-0": "b", f"{NAME}-1": "a", f"{NAME}-2": "a"}
        started = pods.pods(3)
        workers = pods.wait_workers(3, round=0)
        assert [w.node for w in workers] == [f"{NAME}-{index}-0" for index in (1, 2, 0)]
        pods.end_well(*started)


def test_names_may_come_late_and_change(tmp_path: Path) -> None:
    """Pod 0 hosts; it starts last, its name is unknown at first, and then that of another."""
    with Pods(tmp_path, 3, "--rdzv-backend", "tcp") as pods:
        others = [pods.start(f"{NAME}-{index}") for index in (1, 2)]
        for pod in others:
            pod.wait_event("meeting", "does not resolve yet")
        pods.dns.names[f"{NAME}-0.{NAME}"] = NOBODY
        others[0].wait_event("meeting", "waiting for the coordinator at")
        first = pods.start(f"{NAME}-0")
        pods.wait_workers(3, round=0)
        pods.end_well(first, *others)


def test_L6_a_pod_that_leads_is_replaced_under_its_name_at_another_address(tmp_path: Path) -> None:
    """No restart is charged; the others learn of the address, not from the name server."""
    with Pods(tmp_path, 3) as pods:
        first = pods.start(f"{NAME}-0")
        first.wait_event("leads")
        others = [pods.start(f"{NAME}-{index}") for index in (1, 2)]
        pods.wait_workers(3, round=0)
        first.kill()
        again = pods.start(f"{NAME}-0", is_named=False)
        assert pods.address_of(again) != pods.address_of(first)
        workers = pods.wait_workers(3, round=1)
        assert f"{NAME}-0-0" in {worker.node for worker in workers}
        pods.end_well(again, *others)
        assert [restarts(pod) for pod in others] == [0, 0]


def test_a_coordinator_in_a_pod_may_come_back_at_another_address(tmp_path: Path) -> None:
    """`serve` with its data in a volume: the agents ask for its name again, and no worker ends."""
    data = tmp_path / "data"
    serve = ["rallypoint", "serve", "--host", "0.0.0.0", "--data-dir", str(data)]
    with Pods(tmp_path, 2, "--rdzv-backend", "tcp") as pods:
        served = pods.start("serve-0", command=serve)
        pods.container["command"][-4] = f"--rdzv-endpoint=serve-0.{NAME}:{PORT}"
        agents = pods.pods(2)
        pods.wait_workers(2, round=0)
        served.kill()
        pods.start("serve-0", command=serve)
        for agent in agents:
            agent.wait_event("session_resumed")
        pods.end_well(*agents)
        assert {worker.round for worker in pods.workers()} == {0}


@pytest.mark.quick
def test_A5_sigterm_to_the_first_process_drains_its_pod(tmp_path: Path) -> None:
    """The workers of all pods save a checkpoint first; the pod ends with 143, the Job goes on."""
    with Pods(tmp_path, 3, "--spares", "1") as pods:
        agents = pods.pods(3)
        (node, _) = [worker.node for worker in pods.wait_workers(2, round=0)]
        leaving = next(pod for pod in agents if node.startswith(pod.name))
        asking(pods, 2)
        pods.terminate(leaving)
        save(pods)
        assert leaving.wait_exit() == 143
        leaving.wait_event("checkpoint_saved", round=0)
        pods.wait_workers(2, round=1)
        stay = [pod for pod in agents if pod is not leaving]
        pods.end_well(*stay)
        assert [restarts(pod) for pod in stay] == [0, 0]


def test_A5_a_notice_of_a_prestop_hook_and_then_sigterm_are_one_drain(tmp_path: Path) -> None:
    """As with a shell before the agent, which would keep SIGTERM from it."""
    with Pods(tmp_path, 2, nnodes="1:2") as pods:
        stay = pods.start(f"{NAME}-0")
        notice = tmp_path / "leave"
        leaving = pods.start(f"{NAME}-1", f"--preempt-notice={notice}")
        pods.wait_workers(2)
        asking(pods, 2)
        notice.touch()
        lead([stay, leaving]).wait_event("node_draining")
        pods.terminate(leaving)
        leaving.wait_event("signal", "SIGTERM")
        save(pods)
        assert leaving.wait_exit() == 143
        pods.wait_workers(1)
        pods.end_well(stay)


def test_a_pod_is_replaced_under_its_name_while_the_old_one_drains(tmp_path: Path) -> None:
    """The old one keeps its time for the checkpoint; the new one takes its place then."""
    with Pods(tmp_path, 3) as pods:
        agents = pods.pods(3)
        pods.wait_workers(3, round=0)
        asking(pods, 3)
        old = agents[1]
        pods.terminate(old)
        lead(agents).wait_event("node_draining")
        new = pods.start(old.name)
        lead(agents).wait_event("node_joined", f"{NAME}-1-1")
        assert old.process.poll() is None
        save(pods)
        assert old.wait_exit() == 143
        old.wait_event("checkpoint_saved", round=0)
        workers = pods.wait_workers(3, round=1)
        assert {worker.node for worker in workers} == {f"{NAME}-{i}" for i in ("0-0", "1-1", "2-0")}
        assert next(w for w in workers if w.node == f"{NAME}-1-1").rank == 1
        pods.end_well(agents[0], new, agents[2])
        assert restarts(agents[0]) == 0


def test_F6_the_cluster_ip_of_a_service_leads_to_the_pod_that_is_told_to_host(
    tmp_path: Path,
) -> None:
    """No pod can bind that address: it is that of the service, which forwards."""
    with Pods(tmp_path, 2, "--rdzv-backend", "tcp") as pods:
        pods.container["command"][-4] = f"--rdzv-endpoint=service:{PORT}"
        first = pods.start(f"{NAME}-0", "--rdzv-conf=is_host=1")
        pods.dns.names["service"] = pods.network.address(INFRA)
        with pods.service(PORT, first):
            second = pods.start(f"{NAME}-1", "--rdzv-conf=is_host=0")
            workers = pods.wait_workers(2, round=0)
            assert workers[0].env["MASTER_ADDR"] == pods.address_of(first)
            pods.end_well(first, second)


def test_F6_without_a_pod_that_hosts_a_cluster_ip_is_named_as_a_cause(tmp_path: Path) -> None:
    with Pods(tmp_path, 2, "--rdzv-backend", "tcp") as pods:
        pods.dns.names["service"] = pods.network.address(INFRA)
        pods.container["command"][-4] = f"--rdzv-endpoint=service:{PORT}"
        agents = [pods.start(f"{NAME}-{i}", "--rdzv-conf=host_timeout=2") for i in range(2)]
        assert [agent.wait_exit() for agent in agents] == [75, 75]
        for agent in agents:
            assert "No pod can bind the cluster IP of a Kubernetes service" in "\n".join(
                [agent.said, *agent.lines]
            )
