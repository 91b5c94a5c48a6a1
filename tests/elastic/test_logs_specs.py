"""Who places files: the default as a library, and packages by their entry points."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness.one_agent import agent, ended
from tests.harness.plug_ins import install

from rallypoint.elastic import multiprocessing as process
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std
from rallypoint.process.logs.log_dir import LogDir, error_file
from rallypoint.process.logs.specs import Environs

PLUG_IN = """
import json, os
class Mine:
    def __init__(self, log_dir=None, redirects=None, tee=None, local_ranks_filter=None):
        self.told = [log_dir, redirects, tee, sorted(local_ranks_filter)]
        assert log_dir != "bad", "no such archive"
        self.root = log_dir
    def reify(self, envs):
        assert self.root != "worse", "the archive is closed"
        from rallypoint.elastic.multiprocessing import LogsDest
        os.makedirs(self.root)
        with open(f"{self.root}/told", "w") as told:
            print(self.told, sorted(envs), envs[1]["RANK"], file=told)
        return LogsDest(
            stdouts={0: f"{self.root}/zero.out", 1: f"{self.root}/one.out"},
            tee_stdouts={1: f"{self.root}/one.out"},
            error_files={0: f"{self.root}/why.json"},
            filtered_stdout=f"{self.root}/some.out",
        )
    root_log_dir = property(lambda self: self.root)
class Same(Mine):
    def reify(self, envs):
        from rallypoint.elastic.multiprocessing import LogsDest
        os.makedirs(self.root, exist_ok=True)
        return LogsDest(error_files={n: f"{self.root}/why.json" for n in envs})
class Odd(Mine):
    def reify(self, envs):
        from rallypoint.elastic.multiprocessing import LogsDest
        if self.root == "number":
            return LogsDest(stdouts={0: 5})
        if self.root == "pipe":
            return LogsDest(stdouts={0: "pipe"})
        if self.root == "nul":
            return LogsDest(stdouts={0: "a" + chr(0)})
        if self.root == "dict":
            return {}
        if self.root == "lines":
            raise ValueError("first" + chr(10) + "second")
        raise SystemExit(0)
class NoReify:
    def __init__(self, **options): pass
"""
TORCHS = """
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
class Torchs(DefaultLogsSpecs):
    def __init__(self, redirects, **options):
        assert isinstance(redirects, Std)
        super().__init__(redirects=redirects, **options)
"""
CLASSES = {"mine": "Mine", "empty": "NoReify", "gone": "Gone", "odd": "Odd", "same": "Same"}
TALKS = """
import os, sys
tell("out of", os.environ["RANK"], os.environ["TORCHELASTIC_ERROR_FILE"])
os.write(2, b"err of " + os.environ["RANK"].encode() + b"\\n")
"""


def package(home: Path) -> dict[str, str]:
    """An installed package with plug-ins in both groups; the environment that finds it."""
    ours = [f"{name} = archive:{made}" for name, made in CLASSES.items()]
    theirs = [f"{name} = torchs:Torchs" for name in ("mine", "torchs")]
    groups = {"rallypoint.logs_specs": ours, "torchrun.logs_specs": theirs}
    return install(home / "site", groups, archive=PLUG_IN, torchs=TORCHS)


@pytest.mark.executed
def test_a_package_places_files_tees_and_error_files(tmp_path: Path) -> None:
    options = (
        "--nproc-per-node=2",
        "--logs-specs=mine",
        "--log-dir=there",
        "--redirects=0:1,g3:2",
        "--tee=1",
        "--local-ranks-filter=0,1",
        "--duplicate-stdout-filters=of 1",
    )
    run = ended(agent(tmp_path, *options, program=TALKS, env=package(tmp_path)), 0)
    assert run.out == "[default1]:out of 1 \n"
    assert "err of 0\n" in run.err
    there = tmp_path / "there"
    assert (there / "zero.out").read_text() == "out of 0 there/why.json\n"
    assert (there / "one.out").read_text() == "out of 1 \n"
    assert (there / "some.out").read_text() == "[default1]:out of 1 \n"
    assert (there / "told").read_text() == (
        "['there', {0: <Std.OUT: 1>, 'g3': <Std.ERR: 2>}, <Std.OUT: 1>, [0, 1]] [0, 1] 1\n"
    )


def test_an_error_file_of_an_earlier_round_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    program = """
import json, os
if os.environ["RALLYPOINT_ROUND"] == "0":
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": "what went wrong first", "timestamp": 1}, file)
os._exit(7)
"""
    options = ("--logs-specs=same", "--log-dir=there", "--local-ranks-filter=0", "--max-restarts=1")
    run = ended(agent(tmp_path, *options, program=program, env=package(tmp_path)), 1)
    assert "exited with code 7" in run.err
    _, _, verdict = run.err.partition(" failed: ")
    assert "first" not in verdict, run.err
    assert "what went wrong first" in (tmp_path / "there" / "why.json.1").read_text()


def test_a_package_that_was_written_for_torchrun_places_files(
    tmp_path: Path, torch_python: str
) -> None:
    options = ("--logs-specs=torchs", "--log-dir=there", "--redirects=3", "--rdzv-id=job")
    env = package(tmp_path)
    ended(agent(tmp_path, *options, program=TALKS, env=env, python=torch_python), 0)
    (place,) = (tmp_path / "there").glob("job_*/attempt_0/0")
    told = (place / "stdout.log").read_text().replace(f"{tmp_path}/", "")  # Since Python 3.12.
    assert told == f"out of 0 {place.relative_to(tmp_path)}/error.json\n"
    assert (place / "stderr.log").read_text() == "err of 0\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--logs-specs=nine",),
            "--logs-specs nine: no package offers it; there are: default, empty, gone, mine, od",
        ),
        (("--logs-specs=mine", "--log-dir=bad"), "AssertionError: no such archive"),
        (("--logs-specs=mine", "--log-dir=worse"), "Mine.reify failed: AssertionError: the arc"),
        (("--logs-specs=empty",), "--logs-specs empty: archive:NoReify of the package archive"),
        (("--logs-specs=odd", "--log-dir=number"), "Odd.reify failed: TypeError: expected str"),
        (("--logs-specs=odd", "--log-dir=nul"), "ValueError: stdouts has 'a\\x00' for 0"),
        (("--logs-specs=odd", "--log-dir=dict"), "has no attribute 'stdouts'"),
        (("--logs-specs=odd", "--log-dir=lines"), "Odd.reify failed: ValueError: first"),
        (("--logs-specs=odd", "--log-dir=exit"), "Odd.reify failed: SystemExit: 0"),
        (("--logs-specs=gone",), "AttributeError: module 'archive' has no attribute 'Gone'"),
    ],
)
def test_a_package_that_fails_is_one_line(
    tmp_path: Path, options: Sequence[str], said: str
) -> None:
    more = ("--local-ranks-filter=0",)
    run = ended(agent(tmp_path, *options, *more, program="", env=package(tmp_path)), 2)
    (line,) = run.err.splitlines()
    assert line.startswith("rallypoint")
    assert said in line


def test_a_package_that_names_a_pipe_which_nobody_reads_stops_no_agent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    options = ("--logs-specs=odd", "--log-dir=pipe", "--local-ranks-filter=0")
    run = ended(agent(tmp_path, *options, program=TALKS, env=package(tmp_path)), 1)
    assert "can't write logs under pipe: No such device or address" in run.said[0]


def test_a_package_may_name_a_pipe_that_somebody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    options = ("--logs-specs=odd", "--log-dir=pipe", "--local-ranks-filter=0")
    with (
        os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)) as reader,
        agent(tmp_path, *options, program=TALKS, env=package(tmp_path)) as run,
    ):
        assert run.wait() == 0
        assert reader.read() == "out of 0 \n"


class Mine(LogsSpecs):
    """As programs for torch write it: the constructor of the base is called with all."""

    def __init__(self, log_dir: str | None, redirects: Std, tee: Std, ranks: set[int]) -> None:
        super().__init__(log_dir, redirects, tee, ranks)

    def reify(self, envs: Environs) -> LogsDest:
        return LogsDest({0: f"{self._redirects!r} {self._tee!r} {self._local_ranks_filter}"})

    @property
    def root_log_dir(self) -> str | None:
        return None


def test_a_subclass_may_call_the_constructor_of_its_base() -> None:
    dest = Mine("logs", Std.OUT, Std.ERR, {3}).reify({})
    assert dest.stdouts[0] == f"{Std.OUT!r} {Std.ERR!r} {frozenset({3})}"


def test_the_default_as_a_library(tmp_path: Path) -> None:
    specs: LogsSpecs = DefaultLogsSpecs(
        log_dir=str(tmp_path), redirects=Std.OUT, tee={1: Std.ERR}, local_ranks_filter={1}
    )
    env = {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "4"}
    dest = specs.reify({0: env, 1: env})
    (root,) = tmp_path.iterdir()
    place = f"{root}/attempt_4"
    assert dest == LogsDest(
        stdouts={0: f"{place}/0/stdout.log", 1: f"{place}/1/stdout.log"},
        stderrs={0: "/dev/null", 1: f"{place}/1/stderr.log"},
        tee_stderrs={1: f"{place}/1/stderr.log"},
        error_files={0: f"{place}/0/error.json", 1: f"{place}/1/error.json"},
        filtered_stdout=f"{place}/filtered_stdout.log",
        filtered_stderr=f"{place}/filtered_stderr.log",
    )
    assert specs.root_log_dir == str(tmp_path)
    assert process.to_map({1: Std.OUT}, 2) == {0: Std.NONE, 1: Std.OUT}


def test_a_round_of_a_forgetful_coordinator_takes_no_old_error_for_its_own(tmp_path: Path) -> None:
    log_dir = LogDir.open(str(tmp_path), "job")
    for said in ("first", "second"):
        place = Path(log_dir.begin(0, [0, 1]))
        left = Path(error_file(str(place), 0))
        assert not left.exists()
        left.write_text(said)
        with (place / "0" / "stdout.log").open("a") as log:
            log.write(said)
    log_dir.begin(0, [0, 1])
    assert {path.name: path.read_text() for path in (place / "0").iterdir()} == {
        "error.json.1": "first",
        "error.json.2": "second",
        "stdout.log": "firstsecond",
    }


COUNTED = """
import collections, sys
import rallypoint.process.logs.worker_output as output
from rallypoint.config import OutputMode
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, Std
ranks = int(sys.argv[2])
settings = output.OutputSettings(OutputMode.INHERIT, output.LinePrefix("default"), False)
specs = DefaultLogsSpecs(sys.argv[1], redirects=Std.ALL, layout="rounds")
outputs = output.WorkerOutputs(settings, specs, None)
envs = {n: {"RANK": str(n), "RALLYPOINT_ROUND": "0"} for n in range(ranks)}
open_log = output.open_log
for opened in outputs.open_round(0, envs):
    opened.close()
"""


def test_a_rank_costs_a_parallel_file_system_three_operations(tmp_path: Path) -> None:
    """Its directory and its two files; counted as what four hundred ranks add to four."""

    def operations(ranks: int) -> int:
        command = ["strace", "-f", "-e", "trace=%file", "-o", str(tmp_path / "trace")]
        command += [sys.executable, "-c", COUNTED, str(tmp_path / f"logs{ranks}"), str(ranks)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("strace is not installed")
        if "ptrace" in done.stderr:
            pytest.skip("nothing may be traced here")
        assert (done.returncode, done.stderr) == (0, "")
        traced = (tmp_path / "trace").read_text()
        return sum(f"/logs{ranks}/" in line for line in traced.splitlines())

    assert operations(404) - operations(4) == 3 * 400
