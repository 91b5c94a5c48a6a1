"""Environments of frameworks: made once, with pinned packages, beside the packages of this one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.harness import frameworks
from tests.harness.programs import run_program, said_by
from tools.framework_env import CANNOT_BE_HAD, environment, main, pins

from tools import framework_env

PROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """\
import zipfile
METADATA = "Metadata-Version: 2.1\\nName: tiny-framework\\nVersion: 1.0\\n"
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "tiny_framework-1.0-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("tiny_framework.py", "NAME = 'tiny'")
        about = "tiny_framework-1.0.dist-info/"
        wheel.writestr(about + "METADATA", METADATA)
        wheel.writestr(about + "WHEEL", WHEEL)
        wheel.writestr(about + "RECORD", "")
    return name
"""


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table whose one framework is a package of this test, which needs no index."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "backend.py").write_text(BACKEND)
    table = tmp_path / "pins.toml"
    table.write_text(f'[tiny]\npackages = ["{source}"]\n[absent]\npackages = ["absent-one==1.0"]\n')
    monkeypatch.setattr(framework_env, "PINS", table)
    return table


def test_an_environment_has_its_framework_and_what_this_one_has(
    tmp_path: Path, tiny: Path, no_index: None
) -> None:
    python = environment("tiny", tmp_path / "made")
    program = (
        "import sys, tiny_framework, msgspec, rallypoint; print(tiny_framework.NAME, sys.prefix)"
    )
    assert said_by([python, "-c", program]) == f"tiny {tmp_path / 'made' / 'tiny'}\n"
    own = said_by([python.parent / "rallypoint", "--version"])
    assert own == said_by([sys.executable, "-m", "rallypoint", "--version"])
    assert run_program([sys.executable, "-c", "import tiny_framework"]).returncode == 1


@pytest.mark.frameworks
def test_it_is_made_once_and_anew_when_its_pins_change(
    tmp_path: Path, tiny: Path, no_index: None
) -> None:
    folder = tmp_path / "made"
    environment("tiny", folder)
    trace = folder / "tiny" / "trace"
    trace.touch()
    environment("tiny", folder)
    assert trace.exists()
    tiny.write_text(tiny.read_text().replace("[absent]", 'words = ["--no-compile"]\n[absent]'))
    environment("tiny", folder)
    assert not trace.exists()


def test_one_that_cannot_be_had_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    tiny: Path,
    no_index: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(framework_env, "FOLDER", tmp_path)
    assert main(["absent"]) == CANNOT_BE_HAD
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"absent can't be had here: No matching distribution .*absent-one.*\n", line
    )
    assert not (tmp_path / "absent").exists()
    with pytest.raises(pytest.skip.Exception, match="absent can't be had here: "):
        frameworks.framework("absent")


def test_an_unknown_name_is_answered_with_those_of_the_table(tmp_path: Path, tiny: Path) -> None:
    with pytest.raises(LookupError, match=r"no framework 'jaxx': .* has tiny, absent"):
        environment("jaxx", tmp_path)


def test_every_pin_is_of_one_version() -> None:
    for row in pins().values():
        assert all(re.fullmatch(r"[a-z-]+==[\d.]+", package) for package in row.packages)
