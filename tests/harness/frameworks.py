"""Interpreters that have another framework, each in an environment with pinned versions."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from tools.framework_env import environment


def framework(name: str) -> Path:
    """The Python of this row of tools/framework_pins.toml; its environment is made where it is not
    there yet. Where it can't be had, the test is skipped with the reason."""
    found = _environment(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def path_with(python: Path) -> str:
    """PATH with the programs of this environment first: its `accelerate`, `torchrun` and so on."""
    return f"{python.parent}{os.pathsep}{os.environ['PATH']}"


@cache
def _environment(name: str) -> Path | str:
    """An environment that can't be had is not asked for again by the next test."""
    try:
        return environment(name)
    except LookupError as error:
        return str(error)
