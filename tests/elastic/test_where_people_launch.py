"""Functions launched from where people call them: tests, pools, threads, a prompt, a notebook."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.harness.frameworks import framework, path_with
from tests.harness.one_agent import environment
from tests.harness.programs import run_program

AS_A_TEST = """
import os, threading
import pytest
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from rallypoint.elastic.multiprocessing.redirects import redirect_stderr, redirect_stdout
from rallypoint.elastic.run import main

def train(x):
    print("trains", flush=True)
    return x + int(os.environ["RANK"])

def echo(x):
    print("echoes", x, flush=True)
    return x

@pytest.mark.parametrize("method", [None, "spawn", "fork"])
def test_launch(method):
    config = LaunchConfig(1, 1, 2, start_method=method)
    assert elastic_launch(config, train)(5) == {0: 5, 1: 6}

def test_thread():
    config, found = LaunchConfig(1, 1, 2), []
    thread = threading.Thread(target=lambda: found.append(elastic_launch(config, train)(1)))
    thread.start()
    thread.join()
    assert found == [{0: 1, 1: 2}]

def test_processes(tmp_path):
    logs = DefaultLogsSpecs(log_dir=str(tmp_path), tee=Std.ALL)
    started = start_processes("n", echo, {0: (1,), 1: (2,)}, {0: {}, 1: {}}, logs)
    assert started.wait().return_values == {0: 1, 1: 2}
    texts = sorted(path.read_text() for path in tmp_path.rglob("stdout.log"))
    assert texts == ["echoes 1\\n", "echoes 2\\n"]

def test_main():
    main(["--standalone", "--no-python", "true"])

def test_streams(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    with redirect_stdout(str(out)), redirect_stderr(str(err)):
        print("python")
        os.system("echo child; echo complaint >&2")
        thread = threading.Thread(target=print, args=("thread",))
        thread.start()
        thread.join()
    print("after")
    assert sorted(out.read_text().split()) == ["child", "python", "thread"]
    assert err.read_text() == "complaint\\n"
"""

POOL = """
import concurrent.futures as futures
import multiprocessing, os
from multiprocessing.dummy import Pool as Threads
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch

def train(x):
    return x + int(os.environ["RANK"])

def launch(x, method):
    return elastic_launch(LaunchConfig(1, 1, 2, start_method=method), train)(x)

def as_a_daemon(results):
    results.put(launch(7, None))

if __name__ == "__main__":
    for name in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(name)
        with futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            jobs = [pool.submit(launch, 3, method) for method in (None, "fork")]
            assert [job.result() for job in jobs] == [{0: 3, 1: 4}] * 2, name
        results = context.Queue()
        daemon = context.Process(target=as_a_daemon, args=(results,), daemon=True)
        daemon.start()
        assert results.get() == {0: 7, 1: 8}, name
        daemon.join()
    with Threads(2) as pool:
        assert pool.starmap(launch, [(1, None), (2, "spawn")]) == [{0: 1, 1: 2}, {0: 2, 1: 3}]
    print("all")
"""

PROMPT = """
import functools, os, textwrap
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch
from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, start_processes
class Model: pass
def train(x): return x
def refused(call):
    try: call()
    except Exception as error: print(type(error).__name__, error)
launch = functools.partial(elastic_launch, LaunchConfig(1, 1, 1))
refused(lambda: launch(train)(1))
refused(lambda: launch(functools.partial(train, 1))())
refused(lambda: launch(textwrap.indent)([{"model": Model()}]))
refused(lambda: launch(textwrap.indent)(Model))
refused(lambda: start_processes("n", train, {0: (1,)}, {0: {}}, DefaultLogsSpecs()))
print(launch(textwrap.indent)("text", "> "))
"""
REFUSED = """\
ParameterError the function train is defined in a notebook or at a prompt, which workers can't
UsageError the function functools.partial(<function train at
UsageError the arguments of indent for local rank 0 can't be given to a worker: Model is defined in
UsageError the arguments of indent for local rank 0 can't be given to a worker: Model is defined in
UsageError the function train can't be given to a worker: train is defined in a notebook or at a
{0: '> text'}"""

CELLS = """
import os
from rallypoint.elastic.launcher import LaunchConfig, elastic_launch, launch
def train(x): return x + int(os.environ["RANK"])
config = LaunchConfig(1, 1, 2, start_method="fork")
print(elastic_launch(config, train)(1))
---
print(await launch(config, lambda: os.environ["RANK"]))
---
elastic_launch(LaunchConfig(1, 1, 2, start_method="spawn"), train)(1)
---
import textwrap
class Model: pass
elastic_launch(LaunchConfig(1, 1, 1), textwrap.indent)(Model())
---
print(elastic_launch(LaunchConfig(1, 1, 1), textwrap.indent)("text", "> "))
---
from rallypoint.elastic.multiprocessing.redirects import redirect_stdout
with redirect_stdout("out"):
    print("python")
    os.system("echo child")
print(sorted(open("out").read().split()))
---
from rallypoint.elastic.run import main
main(["--standalone", "--no-python", "touch", "hello"])
print(os.path.exists("hello"))
"""
RUNS_CELLS = """
import sys
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
cells = open("cells").read().split("---\\n")
book = new_notebook(cells=[new_code_cell(cell) for cell in cells])
NotebookClient(book, kernel_name="python3", allow_errors=True).execute()
with open("said", "w") as said:
    for cell in book.cells:
        text = "".join(one.get("text", one.get("evalue", "")) for one in cell.outputs)
        print(" ".join(text.split()), file=said)
"""


@pytest.mark.fault
@pytest.mark.parametrize(
    "how",
    [
        "--capture=fd",
        pytest.param("--capture=sys", marks=pytest.mark.quick),
        "--import-mode=importlib",
    ],
)
def test_a_function_of_a_test_is_launched_and_streams_are_redirected(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "test_train.py").write_text(AS_A_TEST)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", how, "test_train.py"]
    done = run_program(words, cwd=tmp_path, env=environment(tmp_path, "launches"))
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_pools_launch(tmp_path: Path) -> None:
    """A short name: the path of a socket of `multiprocessing` has at most 107 bytes."""
    script = tmp_path / "pools.py"
    script.write_text(POOL)
    done = run_program([sys.executable, script], env=environment(tmp_path, "launches"))
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


def test_what_is_defined_at_a_prompt_is_refused_before_a_worker_starts(tmp_path: Path) -> None:
    """In one line, also where it is part of an argument."""
    done = run_program(
        [sys.executable, "-"], input=PROMPT, env=environment(tmp_path, "launches"), cwd=tmp_path
    )
    lines, expected = done.stdout.splitlines(), REFUSED.splitlines()
    assert len(lines) == len(expected), done.stdout
    for line, begins in zip(lines, expected, strict=True):
        assert line.startswith(begins)
    assert done.stderr == ""


@pytest.mark.frameworks
def test_functions_are_launched_from_the_kernel_of_a_notebook_or_refused_in_one_line(
    tmp_path: Path,
) -> None:
    python = framework("notebook")
    (tmp_path / "cells").write_text(CELLS.lstrip())
    (tmp_path / "run.py").write_text(RUNS_CELLS)
    env = {**environment(tmp_path, "launches"), "PATH": path_with(python), "HOME": str(tmp_path)}
    done = run_program([python, "run.py"], cwd=tmp_path, env={**os.environ, **env})
    assert done.returncode == 0, done.stderr
    one, awaited, spawned, argument, module, streams, hello = (
        (tmp_path / "said").read_text().splitlines()
    )
    assert (one, awaited) == ("{0: 1, 1: 2}", "{0: '0', 1: '1'}")
    assert "the function train is defined in a notebook or at a prompt" in spawned
    assert "Model is defined in a notebook or at a prompt, which workers can't import" in argument
    assert module == "{0: '> text'}"
    assert streams == "['child', 'python']"
    assert hello == "True"
