"""Where the output of whole jobs goes: to files and the console, whole, and nothing is left."""

from __future__ import annotations

import os
import re
import select
import threading
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from tests.harness.cluster import Cluster, wait_until
from tests.harness.one_agent import agent, ended, eventually

TWO = "--nproc-per-node=2"
TALKS = """
import os, sys, time
rank, round_ = os.environ["RANK"], os.environ["RALLYPOINT_ROUND"]
os.write(1, f"out of {rank}\\n".encode())
os.write(2, f"err of {rank}\\n".encode())
said = f"said.{os.getppid()}.{round_}."
open(said + rank, "w").close()
while not all(os.path.exists(said + str(n)) for n in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.01)  # a failure stops whoever has not spoken yet
"""
FAILS_ONCE = TALKS + "sys.exit(round_ == '0' and rank == '1')"
FAILS = TALKS + "sys.exit(rank == '1')"


def files(folder: Path, random: str = "_RANDOM/") -> dict[str, str]:
    """Every file below `folder` by its path, without what is random in it."""
    return {
        re.sub(r"_[0-9a-f]{8}/", random, str(path.relative_to(folder))): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.executed
def test_P5_W19_a_restart_erases_no_logs(tmp_path: Path) -> None:
    options = (TWO, "--max-restarts=1", "--log-dir=logs", "--redirects=0:1", "--tee=1:2")
    run = ended(agent(tmp_path, *options, "--rdzv-id=job", program=FAILS_ONCE), 0)
    assert run.err.count("[default1]:err of 1\n") == 2
    base = "job_RANDOM/attempt"
    written = files(tmp_path / "logs")
    assert {path: text for path, text in written.items() if not path.endswith("json")} == {
        f"{base}_0/0/stdout.log": "out of 0\n",
        f"{base}_0/1/stderr.log": "err of 1\n",
        f"{base}_1/0/stdout.log": "out of 0\n",
        f"{base}_1/1/stderr.log": "err of 1\n",
    }


def test_W19_temporary_files_go_when_the_job_succeeds(tmp_path: Path) -> None:
    run = ended(agent(tmp_path, TWO, "--tee=3", program=TALKS), 0)
    assert "kept" not in run.err


def test_W19_temporary_files_are_kept_and_named_when_the_job_fails(tmp_path: Path) -> None:
    with agent(tmp_path, TWO, "--redirects=3", program=FAILS) as run:
        assert run.wait() == 1
        found = re.search(r"the workers' output is kept in (\S+)\n", run.err)
        assert found, run.err
        kept = Path(found[1])
        assert files(kept)["attempt_0/1/stderr.log"] == "err of 1\n"
        assert list((tmp_path / "tmp").iterdir()) == [kept]
        rmtree(kept)
    with agent(tmp_path, TWO, program=FAILS) as run:  # nobody asked for files
        assert run.wait() == 1
    assert "output is kept" not in run.err


def test_W19_a_line_that_is_written_in_pieces_has_one_prefix(tmp_path: Path) -> None:
    """Those of torchrun are torn whenever its poll comes in between."""
    program = """
import os, pathlib
rank = os.environ["RANK"]
def turn(other):
    pathlib.Path(f"said{rank}{other}").touch()
    while not pathlib.Path(f"seen{rank}{other}").exists():
        pass
for piece in ("a snow", "man \\N{SNOWMAN}", " melts"):
    data = piece.encode()
    os.write(1, data[:-2])
    turn(piece[0])
    os.write(1, data[-2:])
os.write(1, b"\\n")
"""
    with agent(tmp_path, "--tee=1", program=program) as run:
        for piece in "am ":
            eventually((tmp_path / f"said0{piece}").exists, "a piece")
            (tmp_path / f"seen0{piece}").touch()
        assert run.wait() == 0
        assert run.out == "[default0]:a snowman \N{SNOWMAN} melts\n"


def test_a_line_that_a_crash_left_open_is_kept_and_comes_before_the_verdict(tmp_path: Path) -> None:
    program = "import os, signal; os.write(2, b'last words'); os.kill(os.getpid(), signal.SIGKILL)"
    run = ended(agent(tmp_path, "--tee=2", "--log-dir=logs", program=program), 1)
    lines = run.err.splitlines()
    (verdict,) = (line for line in lines if " failed: rank 0" in line)
    assert lines.index("[default0]:last words") < lines.index(verdict)
    assert [*files(tmp_path / "logs").values()] == ["last words"]


def test_a_filter_hides_ranks_on_the_console_and_their_files_are_written(tmp_path: Path) -> None:
    """The last lines of a hidden rank still tell why the job failed."""
    options = ("--nproc-per-node=3", "--log-dir=logs", "--local-ranks-filter=0,g2", "--rdzv-id=j")
    program = FAILS
    run = ended(agent(tmp_path, *options, "--tee=0:1,1:1,2:2", program=program), 1)
    assert sorted(re.findall("out of .|err of .", run.out)) == ["out of 0", "out of 2"]
    shown = [line for line in run.err.splitlines() if re.search("err of", line)]
    assert sorted(shown) == ["      | err of 1", "[default2]:err of 2", "err of 0"]
    assert files(tmp_path / "logs") == {
        "j_RANDOM/attempt_0/0/stdout.log": "out of 0\n",
        "j_RANDOM/attempt_0/1/stdout.log": "out of 1\n",
        "j_RANDOM/attempt_0/2/stderr.log": "err of 2\n",
    }


def test_a_filter_holds_for_whatever_the_console_gets(tmp_path: Path) -> None:
    for mode in ("inherit", "prefix"):
        run = ended(
            agent(tmp_path, TWO, f"--output={mode}", "--local-ranks-filter=1", program=TALKS), 0
        )
        assert "of 0" not in run.out + run.err
        assert "out of 1" in run.out
        assert "err of 1" in run.err


def test_W19_copies_without_a_log_directory_are_none(tmp_path: Path) -> None:
    """torchrun looks for a file below the null device."""
    options = ("--log-dir=/dev/null", "--tee=1", "--duplicate-stdout-filters=out")
    run = ended(agent(tmp_path, *options, program=TALKS), 0)
    assert run.out == "[default0]:out of 0\n"
    assert [line for line in run.err.splitlines() if "null" in line] == []


def test_nodes_share_a_log_directory_by_rounds(tmp_path: Path) -> None:
    """Two of one name, too: a launch after the other, or two agents on one machine."""
    options = (TWO, "--max-restarts=1", "--log-dir=logs", "--redirects=1", "--log-layout=rounds")
    for _ in range(2):
        ended(agent(tmp_path, *options, "--rdzv-id=job", "--node-id=rack/7", program=FAILS_ONCE), 0)
    logs = tmp_path / "logs"
    written = files(logs)
    assert {path: text for path, text in written.items() if not path.endswith("json")} == {
        f"job/{node}/{round_}/{rank}/stdout.log": f"out of {rank}\n"
        for node in ("rack_7", "rack_7.2")
        for round_ in ("round_0", "round_1")
        for rank in (0, 1)
    }
    for node in ("rack_7", "rack_7.2"):
        assert os.readlink(logs / "job" / node / "latest") == "round_1"


@pytest.mark.parametrize("layout", ["torchrun", "rounds"])
def test_P5_nodes_that_run_at_once_share_a_log_directory(tmp_path: Path, layout: str) -> None:
    """Two agents of a machine have one host name; ranks are named by their place in the job."""
    logs = tmp_path / "logs"
    options = {"log_dir": str(logs), "log_layout": layout, "redirects": "g1:2,g3:2"}
    with Cluster(tmp_path, nnodes=2, max_restarts=1, **options) as cluster:
        agents = [cluster.agent(name, nproc=2, node_id=None) for name in ("a", "b")]
        cluster.wait_workers(4, round=0)
        cluster.order("os.write(2, f'{me}'.encode())")
        wait_until(lambda: sum(map(bool, files(logs, r"\g<0>").values())) == 2, "their lines")
        cluster.order("sys.exit(1)", round=0, rank=3)
        cluster.wait_workers(4, round=1)
        cluster.order("sys.exit(0)", round=1)
        assert [agent.wait_exit() for agent in agents] == [0, 0]
    written = {path: text for path, text in files(logs, r"\g<0>").items() if path.endswith(".log")}
    assert sorted(written.values()) == sorted(
        f"['{round_}', '{node}', '{rank}']"
        for round_ in (0, 1)
        for node, rank in {(worker.node, worker.rank) for worker in cluster.workers(1)}
        if rank in (1, 3)
    )
    assert len(list(logs.glob("job_*" if layout == "torchrun" else "job/*"))) == 2
    assert all(path.endswith("/1/stderr.log") for path in written)


def test_a_redirected_log_is_rotated(tmp_path: Path) -> None:
    program = """
import os
for number in range(1000):
    os.write(1, b"line %04d\\n" % number)
os.write(1, b"the end")
"""
    options = ("--redirects=1", "--log-max-bytes=4K", "--log-dir=logs")
    run = ended(agent(tmp_path, *options, program=program), 0)
    assert "line" not in run.out
    new, old = (next((tmp_path / "logs").rglob(name)) for name in ("stdout.log", "stdout.log.1"))
    assert sorted(os.listdir(new.parent)) == ["stdout.log", "stdout.log.1"]
    assert 3000 < old.stat().st_size <= 4096
    kept = (old.read_text() + new.read_text()).splitlines()
    assert kept == [f"line {n:04d}" for n in range(1001 - len(kept), 1000)] + ["the end"]


SIXTY_FOUR = """
import os
rank = os.environ["RANK"]
for number in range(200):
    body = "\\N{SNOWMAN}\\N{ROCKET} long " * 833 if number % 2 else "short \\N{ROCKET}"
    print(rank, number, body, "end")
"""


@pytest.mark.parametrize(
    "how", [pytest.param("--tee=1", marks=pytest.mark.fault), "--output=prefix"]
)
def test_lines_of_sixty_four_workers_are_whole_on_the_console(tmp_path: Path, how: str) -> None:
    """Half of them 10 kB. The full storm is benchmarks/output.py."""
    run = ended(agent(tmp_path, "--nproc-per-node=64", how, program=SIXTY_FOUR), 0)
    bodies = ("short \N{ROCKET}", "\N{SNOWMAN}\N{ROCKET} long " * 833)
    heard = [0] * 64
    for line in run.out.splitlines():
        found = re.fullmatch(r"\[default ?(\d+)\]:? ?(\d+) (\d+) (.*) end", line)
        assert found, line[:100]
        rank, number = int(found[2]), int(found[3])
        assert found[1] == found[2]
        assert number == heard[rank]
        assert found[4] == bodies[number % 2]
        heard[rank] += 1
    assert heard == [200] * 64


@pytest.mark.parametrize("how", [{"tee": "1"}, {"output": "prefix"}])
def test_a_console_that_takes_nothing_holds_up_its_writers_only(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    """Its agent stops and restarts the workers when another node fails."""
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    console = os.open(stuck, os.O_RDWR | os.O_NONBLOCK)
    under = ("sh", "-c", f'exec "$@" >"{stuck}"', "sh")
    with Cluster(tmp_path, nnodes=2, max_restarts=1) as cluster:
        free, held = cluster.agent("free"), cluster.agent("held", prefix=under, **how)
        wait_until(lambda: free.workers(0), "the first round")
        cluster.order("while True: os.write(1, b'x' * 9999 + b'\\n')", round=0, node="held")
        wait_until(lambda: takes_nothing(console), "a full console")
        cluster.order("sys.exit(1)", round=0, node="free")
        (again,) = wait_until(lambda: free.workers(1), "the next round")
        assert again.env["WORLD_SIZE"] == "2"
        assert takes_nothing(console)
        reading = threading.Thread(target=read_until_closed, args=(console,))
        reading.start()
        cluster.order("sys.exit(0)", round=1)
        assert [agent.wait_exit() for agent in (free, held)] == [0, 0]
        with stuck.open("wb") as last:
            last.write(END)
        reading.join()


END = b"nothing comes after this"


def takes_nothing(writer: int) -> bool:
    """Whether a write to this pipe would wait."""
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    return not poll.poll(0)


def read_until_closed(console: int) -> None:
    """Take all that comes, and close it after END."""
    os.set_blocking(console, True)
    last = b""
    while not last.endswith(END):
        last = last[-len(END) :] + os.read(console, 1 << 16)
    os.close(console)


ENDLESS = """
import os, time
for _ in range(3200):
    piece = b"x" * 65536
    while piece:
        piece = piece[os.write(1, piece):]
tell("", "done")
open("told", "w").close()
while not os.path.exists("weighed"):
    time.sleep(0.01)
"""


def test_two_hundred_megabytes_without_a_line_end_grow_nobody(tmp_path: Path) -> None:
    with agent(tmp_path, "--output=prefix", program=ENDLESS) as run:
        eventually((tmp_path / "told").exists, "the last of it")
        (relay,) = run.named("rallypoint-rly")
        grown = {pid: peak_kb(pid) for pid in (run.pid, relay)}
        (tmp_path / "weighed").touch()
        assert run.wait() == 0
        written = run.raw_out
        (tmp_path / "stdout").unlink()
    assert written.count(b"x") == 3200 * 65536
    assert written.endswith(b" done\n")
    assert max(grown.values()) < 80_000, grown


def peak_kb(pid: int) -> int:
    """The largest resident size that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])
