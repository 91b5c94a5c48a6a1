"""Which Pythons `make matrix` finds, and what it says of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.matrix import Outcome, find_python, main, run_tests

from tools import matrix


def make_python(folder: Path, version: str, *, says: str | None = None) -> str:
    """A program that answers as an interpreter of that version does."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / f"python{version}"
    python.write_text(f"#!/bin/sh\necho {says or version}\n")
    python.chmod(0o755)
    return str(python)


def test_the_path_comes_before_pyenv(tmp_path: Path) -> None:
    first = make_python(tmp_path / "bin", "3.12")
    make_python(tmp_path / "pyenv/versions/3.12.9/bin", "3.12")
    assert find_python("3.12", f"/nowhere::{tmp_path / 'bin'}", tmp_path / "pyenv") == first


def test_a_shim_for_another_version_is_passed_over(tmp_path: Path) -> None:
    make_python(tmp_path / "shims", "3.12", says="3.11")
    make_python(tmp_path / "pyenv/versions/3.12.9/bin", "3.12")
    newest = make_python(tmp_path / "pyenv/versions/3.12.10/bin", "3.12")
    assert find_python("3.12", str(tmp_path / "shims"), tmp_path / "pyenv") == newest
    assert find_python("3.13", str(tmp_path / "shims"), tmp_path / "pyenv") is None


@pytest.mark.parametrize(
    ("fails", "outcome"),
    [
        ((), Outcome.PASSED),
        (("make unit",), Outcome.FAILED),
        (("--collect-only",), Outcome.NOT_COLLECTED),
        ((".ready ",), Outcome.UNIT_PASSED),
        ((".ready ", "--workers"), Outcome.UNIT_FAILED),
        ((".ready ", ".ready-unit "), Outcome.NOT_RUN),
    ],
)
def test_what_cannot_be_installed_is_no_failure(fails: tuple[str, ...], outcome: Outcome) -> None:
    def run(command: Sequence[str]) -> int:
        return int(any(part in " ".join(command) for part in fails))

    assert run_tests("3.12", "/usr/bin/python3.12", run) is outcome


@pytest.mark.parametrize(("failing", "code"), [("", 0), ("make unit", 1)])
def test_the_last_lines_name_every_version(
    failing: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_python(tmp_path, "3.12")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(
        matrix, "_run", lambda command: int(bool(failing) and failing in " ".join(command))
    )
    assert main(()) == code
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "Python 3.11: not found",
        f"Python 3.12: {'failed' if code else 'passed'}",
        "Python 3.13: not found",
        "Python 3.14: not found",
    ]
