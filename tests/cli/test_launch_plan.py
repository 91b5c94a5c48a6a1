"""What `rallypoint launch` makes of its command line, before it reaches a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.cli.launch.plan import Asked, Plan, read_launch
from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import parse_run
from rallypoint.config import Endpoint
from rallypoint.errors import UsageError

WHERE = Endpoint("10.0.0.1", 20001)
THREE = ("--hosts", "a,b,c")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class HasSsh(ThisHost):
    """Whether this machine has one or not."""

    def find_program(self, name: str) -> str | None:
        return name if name == "ssh" else None


def asked(*words: str, environ: dict[str, str] | None = None) -> Asked:
    return read_launch(words, environ or {}, HasSsh())


def plan(*words: str) -> Plan:
    return asked(*words, "train.py").plan


def words_of(made: Plan, number: int = 0, ready: int = 3) -> list[str]:
    return made.agent_words(made.hosts[number], WHERE, number == 0, ready)


def test_each_host_gets_its_name_its_slots_and_the_options_of_all() -> None:
    made = asked(
        *(
            "--hosts",
            "a:4,b",
            "--rdzv-id",
            "x",
            "--lease=5",
            "--insecure",
            "--exit-code",
            "failed=3",
        ),
        *("--exit-code", "usage=4", "-m", "pkg.train", "--lease", "7"),
        environ={"PET_MAX_RESTARTS": "2", "RALLYPOINT_NODE_ID": "mine"},
    ).plan
    common = ["--rdzv-id=x", "--module", "--max-restarts=2", "--lease=5"]
    common += ["--exit-code=failed=3", "--exit-code=usage=4", "--insecure"]
    end = ["--", "pkg.train", "--lease", "7"]
    start = ["--scheduler=none", "--node-id=a", "--nnodes=2:2"]
    link = [f"--rdzv-endpoint={WHERE}", "--rdzv-conf=is_host=true"]
    assert words_of(made) == [*start, *common, *link, "--nproc-per-node=4", *end]
    second = words_of(made, 1)
    assert "--node-id=b" in second
    assert "--rdzv-conf=is_host=false" in second
    assert not any("--nproc-per-node" in word for word in second)


def test_an_agent_reads_them_as_they_are_meant(home: Path) -> None:
    (home / "train.py").touch()
    made = plan("--hosts", "a:2,b,c", "--nodes", "2:3", "--join-settle", "3")
    config = parse_run(words_of(made), {})
    assert (config.rendezvous.min_nodes, config.rendezvous.max_nodes) == (2, 3)
    assert (config.rendezvous.node_id, config.workers.count) == ("a", 2)
    assert (config.rendezvous.endpoint, config.rendezvous.is_host) == (WHERE, True)
    assert config.rendezvous.join_settle_s == 3


@pytest.mark.parametrize(
    ("words", "least", "most"),
    [
        ((), 3, 3),
        (("--nodes", "2:3"), 2, 3),
        (("--nodes", "2:9"), 2, 3),
        (("--nodes", "2"), 2, 2),
        (("--nnodes", "1:2"), 1, 2),
        (("--spares", "1"), 2, 2),
        (("--nodes", "1:3", "--spares", "1"), 1, 2),
        (("--spares", "0"), 3, 3),
    ],
)
def test_how_many_work(words: tuple[str, ...], least: int, most: int) -> None:
    made = plan(*THREE, *words)
    assert (made.least, made.most) == (least, most)


def test_nobody_waits_for_a_host_that_is_not_there() -> None:
    made = plan(*THREE, "--nodes", "2:3")
    assert "--nnodes=2:3" in words_of(made, ready=3)
    assert "--nnodes=2:2" in words_of(made, ready=2)


def test_the_endpoint_of_a_person_stays_as_it_is() -> None:
    made = plan(*THREE, "--rdzv-endpoint", "head:1234", "--rdzv-conf", "join_timeout=9")
    assert not made.picks_endpoint
    found = made.agent_words(made.hosts[0], None, leads=True, ready=3)
    assert "--rdzv-endpoint=head:1234" in found
    assert "--rdzv-conf=join_timeout=9" in found
    where = ("--rdzv-backend", "file", "--rdzv-endpoint", "/shared")
    assert not plan(*THREE, *where).picks_endpoint


def test_no_question_is_asked_and_a_person_has_the_first_word() -> None:
    made = plan("--hosts", "u@a", "--ssh", "ssh -p 2222 -o ConnectTimeout=1", "--python", "/x y/py")
    command = made.ssh_command(made.hosts[0])
    assert command[:5] == ("ssh", "-p", "2222", "-o", "ConnectTimeout=1")
    assert "BatchMode=yes" in command
    assert command[-3:] == ("--", "u@a", "exec '/x y/py' -P -m rallypoint.cli.launch.host")


def test_variables_come_from_here_or_are_given() -> None:
    found = asked(*THREE, "--env", "A=1=2", "-x", "B", "t.py", environ={"B": "two", "C": "3"})
    assert found.plan.remote.environ == {"A": "1=2", "B": "two"}


def test_the_directory_is_the_one_of_the_shell(home: Path) -> None:
    (home / "real").mkdir()
    (home / "link").symlink_to(home / "real")
    assert plan(*THREE).remote.directory == str(home)
    assert plan(*THREE, "--working-directory", "/there").remote.directory == "/there"
    real = asked(*THREE, "t.py", environ={"PWD": str(home / "link")}).plan.remote.directory
    assert real == str(home), "a variable of another directory is none"


def test_the_token_is_of_the_job_alone() -> None:
    found = asked(*THREE, "--rdzv-id", "x", "t.py")
    other = asked(*THREE, "--rdzv-id", "y", "t.py")
    assert found.token.startswith("job-")
    assert found.token != other.token
    assert found.token == asked(*THREE, "--rdzv-id", "x", "t.py").token
    assert found.token not in repr(found.plan)
    assert asked(*THREE, "--insecure", "t.py").token == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("t.py",), "no hosts: give --hosts a,b,c or --hostfile FILE"),
        ((*THREE,), "the script is missing; for example: rallypoint launch --hosts"),
        ((*THREE, "--hostfile", "f", "t.py"), "--hosts a,b,c: the hosts are in --hostfile f too"),
        (("--hostfile", "none", "t.py"), "--hostfile none: can't be read: No such file"),
        (("--hostfile", ".", "t.py"), "--hostfile .: can't be read: Is a directory"),
        (("--hosts", "a,,b", "t.py"), "--hosts a,,b: a name is missing"),
        (("--hosts=", "t.py"), "--hosts is empty"),
        ((*THREE, "--exclude", "d", "t.py"), "--exclude d: .*is none of the hosts"),
        ((*THREE, "--nodes", "4", "t.py"), "--nodes 4: needs 4 hosts, and 3 are listed"),
        (
            (*THREE, "--nodes", "2", "--nnodes", "3", "t.py"),
            "--nodes 2: --nnodes 3 gives another value",
        ),
        ((*THREE, "--nodes", "x", "t.py"), "--nodes x: needs N or MIN:MAX"),
        ((*THREE, "--spares", "3", "t.py"), "--spares 3: leaves 0 of 3 hosts to work"),
        ((*THREE, "--env", "A B", "t.py"), "--env A B: needs NAME or NAME=VALUE"),
        ((*THREE, "--env", "A", "t.py"), "--env A: is not set here"),
        ((*THREE, "--env", "RALLYPOINT_TOKEN", "t.py"), "the token is sent over ssh"),
        ((*THREE, "--ssh", "no-ssh -v", "t.py"), "--ssh no-ssh -v: no such program here"),
        ((*THREE, "--ssh", "ssh 'x", "t.py"), "--ssh ssh 'x: a quote is not closed"),
        ((*THREE, "--chdir", "a", "--working-directory", "b", "t.py"), "is the same as --chdir a"),
        ((*THREE, "--lease", "x", "t.py"), "--lease x: needs a number of seconds"),
        ((*THREE, "--nproc-per-node", "0", "t.py"), "--nproc-per-node=?.?0: needs 1 or more"),
        ((*THREE, "--rdzv-conf", "a=b", "t.py"), "unknown key a"),
        ((*THREE, "--node-rank", "1", "t.py"), "--node-rank: unknown option"),
        ((*THREE, "--standalone", "t.py"), "--standalone: unknown option"),
        ((*THREE, "--rdzv-backend", "file", "t.py"), "--rdzv-backend"),
        ((*THREE, "python", "t.py"), "^python: a program, not a Python script: leave it out, or"),
        ((*THREE, "/opt/python3.12", "t.py"), "^/opt/python3.12: a program, not a Python script"),
        ((*THREE, "bash", "t.sh"), "^bash: a program, not a Python script: add --no-python"),
    ],
)
def test_a_mistake_is_told_before_a_host_is_reached(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asked(*words)


def test_a_program_is_started_with_no_python_and_a_module_may_have_its_name() -> None:
    assert asked(*THREE, "--no-python", "python", "t.py").plan.words == ("python", "t.py")
    assert asked(*THREE, "-m", "accelerate").plan.words == ("accelerate",)


def test_options_behind_the_script_are_remarked_here_and_not_by_each_host(home: Path) -> None:
    (home / "train.py").touch()
    made = asked("--hosts", "a,b", "train.py", "--nproc-per-node", "2")
    (remark,) = made.remarks
    assert remark.startswith("--nproc-per-node stands behind train.py")
    assert remark.endswith("options of rallypoint launch stand before it")
    assert not parse_run(words_of(made.plan), {}).notices


def test_more_workers_than_a_host_may_have_are_refused(home: Path) -> None:
    (home / "hosts").write_text("a slots=2 max_slots=4\n")
    assert plan("--hostfile", "hosts", "--nproc-per-node", "4").workers
    with pytest.raises(UsageError, match=r"--nproc-per-node 5: .*max_slots=4"):
        plan("--hostfile", "hosts", "--nproc-per-node", "5")
