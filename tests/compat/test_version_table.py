"""The table of torch's versions, beside the torch that is installed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.compat.recordings import Recordings

from rallypoint.elastic import multiprocessing
from rallypoint.torch_versions import KNOWN, VERSIONS

ERRORS = "torch.distributed.elastic.multiprocessing.errors"
HANDLER = "ErrorHandler."


def methods(package: Any) -> list[str]:
    return [name for name in dir(package.ErrorHandler) if not name.startswith("_")]


def test_an_error_handler_has_torchs_methods_and_those_of_later_torchs(
    torch_said: Recordings,
) -> None:
    theirs = torch_said("error_handler", "methods", lambda: methods(import_module(ERRORS)))
    rows = [row for row in KNOWN if row.kind == "name" and row.name.startswith(HANDLER)]
    named = {one.removeprefix(HANDLER): row for row in rows for one in row.name.split(", ")}
    assert {*theirs, *named} <= set(methods(multiprocessing))
    assert {name for name in named if name in theirs} == {
        name for name, row in named.items() if torch_said.has(row)
    }


def test_what_a_torch_does_not_have_yet_is_skipped_with_the_reason(tmp_path: Path) -> None:
    (row,) = (row for row in KNOWN if row.name == "HIP_VISIBLE_DEVICES")
    assert Recordings("other", tmp_path, "2.15.0").has(row)
    assert not Recordings("other", tmp_path, "2.14.1").has(row)
    reason = "HIP_VISIBLE_DEVICES came with torch 2.15, this is 2.14.1"
    with pytest.raises(pytest.skip.Exception, match=reason):
        Recordings("other", tmp_path, "2.14.1").need("HIP_VISIBLE_DEVICES")


def test_a_torch_that_the_table_does_not_cover_is_named(tmp_path: Path) -> None:
    newest = VERSIONS[-1].partition(".")[2]
    unknown = f"2.{int(newest) + 1}"
    with pytest.raises(AssertionError, match=f"torch {unknown} is not among the VERSIONS"):
        Recordings("other", tmp_path, f"{unknown}.0").has(KNOWN[0])
