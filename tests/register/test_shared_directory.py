"""The directory of `--rdzv-backend file`: what a person is told of one that can't be used, or that
other machines may not see."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.harness.commands import is_one_line_with
from tests.harness.one_agent import agent, eventually

from rallypoint.core.model import Epoch, Outcome, SharedSettings, Verdict
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.file_systems import local_file_system
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.directory.upkeep import RETENTION_S
from rallypoint.register.record import decode, encode
from rallypoint.register.version_file import register_name

BY_DIRECTORY = ("--rdzv-backend=file", "--rdzv-id=job", "--local-addr=127.0.0.1")
WORKER = "import os\ntell('rank', os.environ['RANK'])\n"


@pytest.fixture
def local(tmp_path: Path) -> str:
    """The type of the file system, which is this machine's."""
    if not (found := local_file_system(str(tmp_path))):
        pytest.skip("temporary files are not on a file system of this machine")
    return found


def test_nodes_that_can_not_meet_on_a_file_system_of_one_machine_hear_of_it(
    tmp_path: Path, local: str
) -> None:
    where = ("--rdzv-endpoint=jobs", "--nnodes=2", "--rdzv-conf=join_timeout=1")
    with agent(tmp_path, *BY_DIRECTORY, *where, program=WORKER) as run:
        assert run.wait() == 75
    remark = f"{tmp_path}/jobs lies on {local}, a file system that other machines do not see"
    first, second, *_, end, hint, _ = run.err.splitlines()
    assert first.endswith(remark)
    made = f"made {tmp_path}/jobs, which was missing: all nodes must see this directory"
    assert second.endswith(made), "a typo gives each node a directory of its own"
    assert "waited 1 s for 2 nodes, only 1 joined" in end
    assert hint == (
        "    what to do: if other nodes run on other machines, name a directory that all of them "
        f"share: {remark}"
    )
    assert run.err.count(remark) == 2
    assert not run.told("rank")


def test_L1_nodes_that_could_begin_the_job_apart_wait_for_a_directory_that_is_missing(
    tmp_path: Path, local: str
) -> None:
    """It may be about to be mounted: the nodes that see it would begin the job there as well."""
    where, nodes = "--rdzv-endpoint=jobs", "--nnodes=1:2"
    why = f"it does not exist, and would lie on {local}, a file system that other machines do not"
    with agent(
        tmp_path, *BY_DIRECTORY, where, nodes, "--rdzv-conf=join_timeout=1", program=WORKER
    ) as run:
        assert run.wait() == 75
    assert run.err.splitlines()[-1].startswith(
        f"rallypoint: --rdzv-endpoint {tmp_path}/jobs: {why}"
    )
    assert run.err.endswith(
        "mount it. If all nodes run on this machine, make it with mkdir (waited 1 s)\n"
    )
    assert not (tmp_path / "jobs").exists()
    with agent(
        tmp_path, *BY_DIRECTORY, where, nodes, "--rdzv-conf=last_call_timeout=0.1", program=WORKER
    ) as run:
        eventually(lambda: f"waiting for the directory {tmp_path}/jobs: {why}" in run.err, "a word")
        (tmp_path / "jobs").mkdir(mode=0o700)
        assert run.wait() == 0, run.err
    assert run.told("rank") == ["0"]


def test_nodes_that_have_a_directory_each_hear_that_no_other_one_comes(tmp_path: Path) -> None:
    """Each mounts its own: the name is the same, and nothing else would be said for ten minutes."""
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    where = ("--rdzv-endpoint=jobs", "--nnodes=2", "--rdzv-conf=join_timeout=12")
    with (
        agent(homes[0], *BY_DIRECTORY, *where, program=WORKER) as first,
        agent(homes[1], *BY_DIRECTORY, *where, program=WORKER) as second,
    ):
        assert (first.wait(), second.wait()) == (75, 75)
    said = "no other node has joined for 8 s: check that all nodes have the same --rdzv-id, and "
    "that "
    for home, run in zip(homes, (first, second), strict=True):
        assert run.err.count(said) == 1, run.err
        line = next(line for line in run.said if said in line)
        assert f"that {home}/jobs (" in line, line
        assert ", mounted on /" in line, line


def test_a_node_that_is_joined_by_another_one_does_not_say_that_it_is_alone(
    tmp_path: Path,
) -> None:
    """Though both wait for a third one."""
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    where = (f"--rdzv-endpoint={tmp_path}/jobs", "--nnodes=3", "--rdzv-conf=join_timeout=12")
    with (
        agent(homes[0], *BY_DIRECTORY, *where, "--insecure", program=WORKER) as first,
        agent(homes[1], *BY_DIRECTORY, *where, "--insecure", program=WORKER) as second,
    ):
        assert (first.wait(), second.wait()) == (75, 75)
    assert "only 2 joined" in first.err + second.err
    assert "no other node has come" not in first.err + second.err
    # Each has kept its own end, though no round was formed.
    kept = [list(home.glob(".local/state/rallypoint/kept/*/node-*.json")) for home in homes]
    assert list(map(len, kept)) == [1, 1]
    assert kept[0][0].parent.name == kept[1][0].parent.name
    for (note,) in kept:
        assert "only 2 joined" in note.read_text()


def test_one_node_may_keep_its_job_on_its_own_disk(tmp_path: Path, local: str) -> None:
    with agent(tmp_path, *BY_DIRECTORY, "--rdzv-endpoint=jobs", program=WORKER) as run:
        assert run.wait() == 0, run.err
    assert run.told("rank") == ["0"]
    assert local not in run.err


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("a file", ["it is a file, as earlier versions used", "name a directory"]),
        ("below a file", ["below is not a directory: name a directory"]),
        ("of all users", ["other users may write to it (mode 0777): run `chmod go-w` on it"]),
    ],
)
def test_a_directory_that_can_not_be_used_is_one_line(
    tmp_path: Path, kind: str, parts: list[str]
) -> None:
    where = tmp_path / "jobs"
    if kind == "of all users":
        where.mkdir()
        where.chmod(0o777)
    else:
        where.touch()
    endpoint = f"--rdzv-endpoint=jobs{'/below' if kind == 'below a file' else ''}"
    with agent(tmp_path, *BY_DIRECTORY, endpoint, program=WORKER) as run:
        assert run.wait() == 2
    assert is_one_line_with(run.err, endpoint.replace("=", " ").split()[0], *parts)
    assert not run.told("rank")


@pytest.mark.parametrize("hold", ["0", "-1", "soon", "1.9", "301"])
def test_L8_a_hold_that_can_not_be_is_one_line(tmp_path: Path, hold: str) -> None:
    conf = f"--rdzv-conf=hold={hold}"
    with agent(tmp_path, *BY_DIRECTORY, "--rdzv-endpoint=jobs", conf, program=WORKER) as run:
        assert run.wait() == 2
    assert is_one_line_with(run.err, f"--rdzv-conf hold={hold}", "seconds")
    assert not run.told("rank")


def test_L8_the_record_has_the_hold_of_the_node_that_leads(tmp_path: Path) -> None:
    """The other one was given none."""
    homes = [tmp_path / "a", tmp_path / "b"]
    for home in homes:
        home.mkdir()
    where = (f"--rdzv-endpoint={tmp_path}/jobs", "--nnodes=2", "--insecure")
    go = str(tmp_path / "go")
    waits = WORKER + f"import time\nwhile not os.path.exists({go!r}): time.sleep(0.02)\n"
    with agent(homes[0], *BY_DIRECTORY, *where, "--rdzv-conf=hold=25", program=waits) as first:
        first.wait_said("this node leads the job")
        with agent(homes[1], *BY_DIRECTORY, *where, program=waits) as second:
            second.wait_told("rank")
            found = DirectoryBackend(str(tmp_path / "jobs"), "job").get_state()
            assert found is not None
            assert decode(found[0]).leader.hold_s == 25
            (tmp_path / "go").touch()
            assert (first.wait(), second.wait()) == (0, 0)


@pytest.mark.parametrize(
    ("lease_s", "hold_s", "is_short"), [(13, 10, True), (14, 10, False), (20, 20, True)]
)
def test_L8_a_lease_that_is_too_short_to_outlive_the_leader_s_machine_is_remarked(
    tmp_path: Path, lease_s: int, hold_s: int, is_short: bool
) -> None:
    (tmp_path / "jobs").mkdir(mode=0o700)
    where = ("--rdzv-endpoint=jobs", "--nnodes=1:2", "--insecure", f"--lease={lease_s}")
    conf = f"--rdzv-conf=last_call_timeout=0.1,hold={hold_s}"
    with agent(tmp_path, *BY_DIRECTORY, *where, conf, program=WORKER) as run:
        assert run.wait() == 0, run.err
    remark = f"--lease {lease_s}: if the machine of the leading node vanishes, another node leads"
    assert run.err.count(remark) == is_short


def test_L8_a_hold_is_for_a_register(tmp_path: Path) -> None:
    with agent(tmp_path, "--standalone", "--rdzv-conf=hold=5", program=WORKER) as run:
        assert run.wait() == 0
    assert "--rdzv-conf hold=5 has no effect without --rdzv-backend file" in run.err


@pytest.mark.parametrize(
    ("access", "says"),
    [
        (["--insecure"], "was written by a job with a token: start all nodes with the same token"),
        (["--token-file=other"], "was written with another token: start all nodes with the same"),
    ],
    ids=["no token", "another token"],
)
def test_F8_a_node_without_the_job_s_token_takes_no_part(
    tmp_path: Path, access: list[str], says: str
) -> None:
    """And is not worth starting again."""
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    (other / "other").write_text("ab" * 32)
    (other / "other").chmod(0o600)
    where = f"--rdzv-endpoint={tmp_path / 'jobs'}"
    waits = WORKER + "import time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    with agent(home, *BY_DIRECTORY, where, program=waits) as run:
        run.wait_told("rank")
        with agent(other, *BY_DIRECTORY, where, *access, program=WORKER) as refused:
            assert refused.wait() == 2
        assert is_one_line_with(refused.err, str(tmp_path / "jobs"), says)
        assert not refused.told("rank")
        (home / "go").touch()
        assert run.wait() == 0, run.err


def test_a_node_that_leads_removes_what_other_jobs_have_left_a_week_ago(tmp_path: Path) -> None:
    for name in ("old", "new"):
        jobs = tmp_path / "jobs"
        jobs.mkdir(mode=0o700, exist_ok=True)
        assert DirectoryBackend(str(jobs), name).set_state(b"state")
    old, new = (jobs / register_name(name) for name in ("old", "new"))
    for path in (old, *old.iterdir()):
        os.utime(path, (time.time() - RETENTION_S - 10,) * 2)
    waits = WORKER + "import time\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    with agent(tmp_path, *BY_DIRECTORY, "--rdzv-endpoint=jobs", program=waits) as run:
        eventually(lambda: not old.exists(), "the old register to go")
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.err
    assert sorted(path.name for path in jobs.iterdir()) == sorted([new.name, register_name("job")])


def test_a_node_that_can_not_host_the_job_says_why_once_and_at_the_end(tmp_path: Path) -> None:
    """Another node might."""
    options = ("--rdzv-backend=file", "--rdzv-id=job", "--rdzv-endpoint=jobs")
    wrong = ("--local-addr=192.0.2.77", "--rdzv-conf=join_timeout=3")
    with agent(tmp_path, *options, *wrong, program=WORKER) as run:
        assert run.wait() == 75
    why = "--local-addr 192.0.2.77: 192.0.2.77 is not an address of this machine"
    *before, last = run.err.splitlines()
    assert sum(why in line for line in before) == 1, run.err
    assert last.startswith(
        f"rallypoint: no node led the job within 3 s (this node can't lead the job: {why}"
    )


def test_L7_a_new_job_does_not_hear_how_one_of_its_name_has_ended_long_ago(tmp_path: Path) -> None:
    """Its last leader was killed before it could record that all had heard."""
    jobs = tmp_path / "jobs"
    jobs.mkdir(mode=0o700)
    verdict = Verdict(Outcome.SUCCEEDED, "long ago", 0)
    ended = JobRecord(SharedSettings("job", 1, 1, lease_s=1.0), 5, 0, verdict=verdict)
    before = Leader(("127.0.0.1:1",), Process("boot", 1, 1), has_workers=True)
    record = LeadRecord(1, Epoch(1, 1), before, 0, ended, is_vacant=True, is_dead=True)
    assert DirectoryBackend(str(jobs), "job").set_state(encode(record))
    options = ("--rdzv-endpoint=jobs", "--lease=1", "--insecure")
    with agent(tmp_path, *BY_DIRECTORY, *options, program=WORKER) as run:
        assert run.wait() == 0, run.err
    assert run.told("rank") == ["0"]
