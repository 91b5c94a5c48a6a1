"""An engine of another package, as docs/registers.md prints it, in a folder of its own: jobs
go through the loss of their leader with it, and every command takes it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cluster import Cluster, free_port
from tests.harness.leading_agents import leader_of, lose_leader
from tests.harness.limits import patience
from tests.harness.prepared import processes
from tests.harness.programs import run_program, run_python
from tests.register.installed import CONTRACT, PROJECT, ROW, STORE, Environment

from rallypoint.register.engines import GROUP


def shelf_cluster(folder: Path, environment: Environment, shelf: str) -> Cluster:
    """Nodes whose jobs are recorded on a shelf."""
    made = Cluster(
        folder,
        rdzv_backend="shelf",
        rdzv_endpoint=shelf,
        nnodes="1:2",
        lease=30,
        local_addr="127.0.0.1",
        rdzv_conf="last_call_timeout=20,folder=team",
    )
    made.env |= environment.variables
    return made


@pytest.fixture
def cluster(tmp_path: Path, environment: Environment, shelf: str) -> Iterator[Cluster]:
    with shelf_cluster(tmp_path, environment, shelf) as made:
        yield made


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rallypoint", *words]
    env, limit_s = cluster.environ(), patience(60)
    return processes.run(line, env=env, cwd=cluster.folder, capture_output=True, timeout=limit_s)


def place(cluster: Cluster) -> list[str]:
    where = f"--rdzv-endpoint={cluster.options['rdzv_endpoint']}"
    return ["--rdzv-backend=shelf", where, "--rdzv-conf=folder=team"]


def test_L6_a_job_by_an_engine_of_another_package_survives_the_kill_of_its_leader(
    cluster: Cluster,
) -> None:
    """The guard of the leader marks the record by that engine, so that the next one need not wait
    for the hold, and says that the leader has died."""
    agents = [cluster.agent(name) for name in "ab"]
    lose_leader(cluster, agents, cluster.wait_workers(2, round=0))
    cluster.end_well(*agents)
    assert agents[0].verdict["restarts"] == 0


def test_V1_every_command_finds_a_job_by_an_engine_of_another_package(
    cluster: Cluster,
) -> None:
    agents = [cluster.agent(name) for name in "ab"]
    cluster.wait_workers(2, round=0)
    leader = leader_of(*agents)
    look = leader.wait_event("look").message.partition(": ")[2]
    program, *words = shlex.split(look)
    assert (program, words[0]) == ("rallypoint", "status")
    for said in (words, ["status", *place(cluster)], ["status", "--job=job", *place(cluster)]):
        shown = command(cluster, *said)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "running" in shown.stdout, shown.stdout
    (other,) = (agent for agent in agents if agent is not leader)
    gone = command(cluster, "drain", other.name, "--rdzv-id=job", *place(cluster))
    assert (gone.returncode, gone.stderr) == (0, "")
    cluster.end_well(leader)
    where = str(cluster.options["rdzv_endpoint"])
    ended = command(
        cluster, "verdict", where, "--job=job", "--rdzv-backend=shelf", "--rdzv-conf=folder=team"
    )
    assert (ended.returncode, ended.stdout) == (
        0,
        "the job succeeded: all workers exited with code 0\n",
    )


def test_L1_a_candidate_finds_jobs_by_an_engine_of_another_package(cluster: Cluster) -> None:
    (agent,) = [cluster.agent("a")]
    cluster.wait_workers(1)
    candidate = cluster.serve(*place(cluster), "--candidate", port=free_port())
    candidate.wait_event("waits_to_lead", "job job: ready to take over from 127.0.0.1:")
    where = cluster.options["rdzv_endpoint"]
    candidate.wait_event("serving", f"jobs are kept in the shelf at {where}")
    cluster.end_well(agent)


def test_the_explanation_names_the_place_of_an_engine_of_another_package(
    cluster: Cluster,
) -> None:
    told = command(cluster, "run", "--explain", "--rdzv-id=j", *place(cluster), "worker.py")
    where = cluster.options["rdzv_endpoint"]
    assert f"its record is in the shelf at {where}" in " ".join(told.stdout.split()), told.stderr


PROGRAM = """
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
def work():
    return 7
if __name__ == "__main__":
    config = LaunchConfig(1, 1, 1, run_id="j", rdzv_backend="shelf", rdzv_endpoint={where!r})
    print(elastic_launch(config, work)())
"""


def test_a_program_may_choose_an_engine_of_another_package(cluster: Cluster) -> None:
    program = cluster.folder / "program.py"
    program.write_text(PROGRAM.format(where=cluster.options["rdzv_endpoint"]))
    words = [sys.executable, str(program)]
    ended = processes.run(words, env=cluster.environ(), capture_output=True)
    assert ended.stdout == "{0: 7}\n", ended.stderr


def said(environment: Environment, folder: Path, *words: str) -> tuple[int, str]:
    """The exit code of a run, and what a person reads."""
    line = [sys.executable, "-m", "rallypoint", "run", *words, "--no-python", "true"]
    env = os.environ | {"HOME": str(folder)} | environment.variables
    ended = processes.run(line, env=env, capture_output=True, timeout=patience(60))
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            ["--rdzv-backend=shlef"],
            "--rdzv-backend shlef: known are tcp, c10d, static, file, etcd, kubernetes, shelf",
        ),
        (["--rdzv-backend=shelf"], "--rdzv-backend shelf: needs --rdzv-endpoint HOST:PORT of a"),
        (
            ["--rdzv-backend=shelf", "--rdzv-endpoint=h:1"],
            "--rdzv-backend shelf: a shelf may hold many jobs: give --rdzv-id, the same for all",
        ),
        (
            ["--rdzv-backend=shelf", "--rdzv-endpoint=h", "--rdzv-id=j"],
            "--rdzv-backend shelf: h: needs HOST:PORT",
        ),
        (
            ["--rdzv-backend=shelf", "--rdzv-endpoint=h:1", "--rdzv-id=j", "--rdzv-conf=folder=-"],
            "--rdzv-backend shelf: folder=-: needs letters and digits",
        ),
        (
            ["--rdzv-backend=shelf", "--rdzv-endpoint=h:1", "--rdzv-id=j", "--rdzv-conf=floder=x"],
            "--rdzv-conf floder=x: unknown key floder",
        ),
    ],
)
def test_each_mistake_is_one_line(
    environment: Environment, tmp_path: Path, given: list[str], says: str
) -> None:
    code, err = said(environment, tmp_path, *given)
    assert code == 2
    (line,) = (line for line in err.splitlines() if "rdzv" in line)
    assert says in line


def test_a_shelf_that_is_away_is_waited_for_and_said(
    environment: Environment, tmp_path: Path
) -> None:
    where = f"127.0.0.1:{free_port()}"
    words = ["--rdzv-backend=shelf", f"--rdzv-endpoint={where}", "--rdzv-id=j"]
    code, err = said(environment, tmp_path, *words, "--rdzv-conf=join_timeout=0.3")
    assert code == 75
    last = err.splitlines()[-1]
    assert f"--rdzv-endpoint {where}: waited 0.3 s: the shelf does not answer: " in last
    assert last.endswith("; see that it runs there")


def broken(tmp_path: Path, files: dict[str, str], name: str = "shelf") -> Environment:
    """A folder with another package of the same engine."""
    made = Environment(tmp_path / "packages")
    project = PROJECT.replace('shelf = "shelf:ROW"', f'{name} = "shelf:ROW"')
    made.install(project, {"shelf/__init__.py": ROW, "shelf/store.py": STORE} | files)
    return made


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("shelf/__init__.py", "import nowhere", "could not be loaded: ModuleNotFoundError: No mod"),
        ("shelf/__init__.py", "ROW = 5", "is no rallypoint.register.engines.Row, but 5"),
        ("shelf/store.py", "1 / 0", "could not be loaded: ZeroDivisionError: division by zero"),
        ("shelf/store.py", "", "could not be loaded: AttributeError: module 'shelf.store' has no"),
    ],
)
def test_a_package_that_can_not_be_used_is_named_in_one_line(
    tmp_path: Path, path: str, text: str, says: str
) -> None:
    environment = broken(tmp_path, {path: text})
    words = ["--rdzv-backend=shelf", "--rdzv-endpoint=h:1", "--rdzv-id=j"]
    code, err = said(environment, tmp_path, *words)
    assert code == 75
    (line,) = err.splitlines()
    what = "the register engine 'shelf' of the package rallypoint-shelf (shelf:ROW)"
    assert f"{what} {says}" in line


def test_a_package_can_not_replace_what_is_built_in_and_is_not_looked_for(tmp_path: Path) -> None:
    environment = broken(tmp_path, {"shelf/__init__.py": "1 / 0"}, name="file")
    jobs = tmp_path / "jobs"
    words = ["--rdzv-backend=file", f"--rdzv-endpoint={jobs}", "--rdzv-id=j", "--insecure"]
    assert said(environment, tmp_path, *words, "--quiet") == (0, "")
    look = (
        "import sys, json\n"
        "from rallypoint.cli.options import parse_run\n"
        "from rallypoint.cli.machine import ThisHost\n"
        "from rallypoint.agent.leading import make_for\n"
        f"words = {[*words, 'x.py']!r}\n"
        "open('x.py', 'w').close()\n"
        "print(make_for(parse_run(words, {}, ThisHost()).rendezvous).name)\n"
        "print('importlib.metadata' in sys.modules)\n"
    )
    env = os.environ | environment.variables
    ended = run_python(look, cwd=tmp_path, env=env, check=True)
    assert ended.stdout.split() == ["file", "False"]


BY_SHELF = """
import os

import pytest


@pytest.fixture(autouse=True)
def an_empty_shelf(request):
    run_of, request.instance.address = request.node.name, os.environ["SHELF"]
    request.instance.folder = "".join(filter(str.isalnum, run_of))
"""


def test_the_contract_of_the_page_holds_for_its_engine(
    tmp_path: Path, environment: Environment, shelf: str
) -> None:
    """Each test has a folder of the shelf."""
    (tmp_path / "conftest.py").write_text(BY_SHELF)
    text = CONTRACT.replace("self.address, {},", "self.address, {'folder': self.folder},")
    assert text != CONTRACT
    (tmp_path / "test_shelf.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = os.environ | environment.variables | {"SHELF": shelf}
    ended = run_program(words, env=env, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert "passed" in ended.stdout


def test_the_group_of_the_page_is_the_one_that_is_looked_for() -> None:
    assert f'[project.entry-points."{GROUP}"]' in PROJECT
