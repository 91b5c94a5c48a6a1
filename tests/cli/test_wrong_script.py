"""What stands where the script should be is looked at before a hint is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from rallypoint.cli.machine import ThisHost
from rallypoint.cli.options import parse_run
from rallypoint.errors import UsageError

A_PROGRAM = "a program, not a Python script: leave it out, or add --no-python"
ALONE = "a program, not a Python script: add --no-python"
FILES: Mapping[str, str | bytes] = {
    "train.py": "print('ran')\n",
    "my train.py": "",
    "bom": b"\xef\xbb\xbf#!/bin/sh\necho\n",
    "pkg/train.py": "",
    "s.sh": "#!/bin/bash\necho $RANK\n",
    "job.slurm": "srun python train.py\n",
    "run": "#!/usr/bin/env -S FOO=1 bash -e\necho\n",
    "n.ipynb": '{"cells": [], "nbformat": 4}\n',
    "nb": '\n{"cells": [], "nbformat": 4}\n',
    "conf.yaml": "lr: 1\n",
    "conf.json": '{"lr": 1}\n',
    "prog": b"\x7fELF\x02\x01\x01\0\0",
    "tool": "#!/somewhere/bin/python\nprint('ran')\n",
    "uvx": "#!/usr/bin/env -S uv run --script\nprint('ran')\n",
    "long": "#!/bin/sh\n'''exec' \"/a very long/python\" \"$0\" \"$@\"\n' '''\nprint(1)\n",
    "plain": "print('ran')\n",
    "archive.pyz": b"PK\x03\x04",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pkg").mkdir()
    for name, content in FILES.items():
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(data)
    for name in ("s.sh", "prog"):
        (tmp_path / name).chmod(0o755)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python", "bash", "accelerate", "torchrun"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(programs))
    return tmp_path


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_run(words, {}, ThisHost())
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("python train.py", f"python: {A_PROGRAM}"),
        ("python -u train.py", "python: a program, not a Python script: leave out python -u"),
        ("accelerate launch train.py", "accelerate: a program, not a Python script: leave out acc"),
        ("horovodrun launch train.py", "horovodrun: no such file, and no such program; to run"),
        ("deepspeed train.py", f"deepspeed: {A_PROGRAM}"),
        ("my train.py", "my: no such file; a name with blanks needs quotes: 'my train.py'"),
        ("- train.py", "-: the workers can't read a script from stdin: give the name of a file"),
        ("\u2014nproc-per-node 2 train.py", "\u2014nproc-per-node: it begins with another char"),
        ("bom", "bom: a script of sh, not of Python: give --no-python sh ./bom"),
        ("lost.ipynb", "lost.ipynb: no such file"),
        ("torchrun --nproc-per-node 2 train.py", f"torchrun: {A_PROGRAM}"),
        ("bash train.py", f"bash: {A_PROGRAM}"),
        ("python -m pkg.train", f"python: {A_PROGRAM}"),
        ("./prog", f"./prog: {ALONE}"),
        ("bash s.sh", f"bash: {ALONE}"),
        ("python -c print(1)", f"python: {ALONE}"),
        ("./s.sh 1", "./s.sh: a script of bash, not of Python: give --no-python ./s.sh"),
        ("s.sh", "s.sh: a script of bash, not of Python: give --no-python ./s.sh"),
        ("run", "run: a script of bash, not of Python: give --no-python bash ./run"),
        ("job.slurm", "job.slurm: a script of bash, not of Python: give --no-python bash ./"),
        ("n.ipynb", "n.ipynb: a notebook, not a Python script: make one of it (jupyter nbconv"),
        ("nb", "nb: a notebook, not a Python script"),
        ("conf.yaml", "conf.yaml: a file of settings, not a Python script; the script comes"),
        ("conf.json train.py", "conf.json: a file of settings, not a Python script"),
        ("train", "train: no such file; did you mean train.py?"),
        ("pkg.train", "pkg.train: no such file, but a module: add -m"),
        ("pkg", "pkg: a directory without a __main__.py; name the script in it"),
        ("json.tool", "json.tool: no such file, but a module: add -m"),
        ("some.where", "some.where: no such file; if it is a module, add -m"),
        ("horovodrun", "horovodrun: no such file, and no such program"),
        ("nosuch.py", "nosuch.py: no such file"),
        ("s3://bucket/train.py", "s3://bucket/train.py: needs a file of this machine, and s3://"),
        ("-m train.py", "train.py: a file, not a module: leave -m out"),
        ("-m pkg/other", "pkg/other: not the name of a module; did you mean -m pkg.other?"),
        ("-m ./pkg/other.py", "./pkg/other.py: not the name of a module; did you mean -m pkg.ot"),
        ("--no-python train.py", "train.py: a Python script: leave --no-python out"),
        ("--no-python run", "run: no such program in PATH; for the one in this directory: ./run"),
        ("--no-python ./run", "./run: may not be executed: chmod +x it"),
    ],
)
def test_a_hint_says_what_is_there(here: Path, words: str, why: str) -> None:
    assert refusal(*words.split()).startswith(why)


def test_a_fix_that_names_words_is_whole(here: Path) -> None:
    assert refusal("lost.ipynb") == "lost.ipynb: no such file"
    why = refusal("horovodrun", "launch", "train.py")
    assert why.endswith("no such program; to run train.py, leave out horovodrun launch")
    why = refusal("horovodrun", "--num_gpus", "2", "train.py")
    assert why.endswith("to run train.py, leave out horovodrun")
    assert refusal("\u2014nproc-per-node", "2", "train.py").endswith(": give --nproc-per-node")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([" "], "' ': the script's name is empty; for example: rallypoint run train.py (a back"),
        ([""], "'': the script's name is empty"),
        (["--no-python", "\r"], "'\\r': the program's name is empty"),
        (["-m", " "], "' ': the module's name is empty"),
        (["lost.py "], "'lost.py ': no such file"),
        (["lost.py\r"], "'lost.py\\r': no such file"),
        (["train.py --lr 3"], "train.py --lr 3: no such file; this is one word, with blanks in it"),
        (["--no-python", "bash -c"], "bash -c: no such file; this is one word, with blanks in"),
    ],
)
def test_blanks_that_nobody_sees_are_shown(here: Path, words: list[str], why: str) -> None:
    assert refusal(*words).startswith(why)


@pytest.mark.parametrize(
    "name", ["train.py", "tool", "uvx", "long", "plain", "archive.pyz", " train.py", "train.py\r"]
)
def test_what_python_can_run_is_run(here: Path, name: str) -> None:
    assert parse_run([name, "--lr", " 3 "], {}, ThisHost()).workers.argv[2:] == (
        name.strip(),
        "--lr",
        " 3 ",
    )


def test_a_path_that_no_shell_has_expanded_is_found(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(here))
    for name in ("~/plain", f"file://{here}/plain"):
        assert parse_run([name], {}, ThisHost()).workers.argv[2] == str(here / "plain")
    (program,) = parse_run(["--no-python", "~/s.sh"], {}, ThisHost()).workers.argv
    assert program == str(here / "s.sh")


def test_a_pipe_is_not_read(here: Path) -> None:
    """A shell gives one for `<(echo ...)`: what was read would be gone."""
    os.mkfifo(here / "pipe")
    assert parse_run(["./pipe"], {}, ThisHost()).workers.argv[2] == "./pipe"
