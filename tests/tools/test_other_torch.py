"""What `make compat TORCH=VERSION` says of a version that it can't have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.recordings import Recordings
from tools.other_torch import NOTHING_COMPARED, environment, main, why

from tools import other_torch


@pytest.mark.parametrize("word", ["", "newest", "2", "2.14.1; rm", "--help"])
def test_what_is_no_version_is_said_in_one_line(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == NOTHING_COMPARED
    assert capsys.readouterr().out == (
        f"{word!r}: needs a version of torch, for example make compat TORCH=2.14.1\n"
    )


def test_a_version_that_cannot_be_had_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    folder = tmp_path / "2.99.9"
    with pytest.raises(LookupError) as caught:
        environment("2.99.9", folder, ())
    said = str(caught.value)
    assert said.startswith("torch 2.99.9 can't be had here: ")
    assert "\n" not in said
    assert not folder.exists()


CONFLICT = """\
Looking in indexes: https://example.org/simple

The conflict is caused by:
    The user requested torch==2.99.9
    The user requested {cause}

To fix this you could try to:
1. loosen the range of package versions you've specified
"""
ERRORS = """\
WARNING: something else
ERROR: Cannot install torch==2.99.9 because these package versions have conflicting dependencies.
ERROR: ResolutionImpossible: for help visit https://example.org/conflicts
"""


def test_a_constraint_that_keeps_a_version_out_is_named() -> None:
    assert why(CONFLICT.format(cause="(constraint) torch<=2.14.1"), ERRORS) == (
        "a constraint of pip allows torch<=2.14.1 only; `pip config list` says where it is"
    )
    assert why(CONFLICT.format(cause="torch==2.99.8"), ERRORS) == (
        "these exclude each other: "
        "The user requested torch==2.99.9; The user requested torch==2.99.8"
    )
    assert why("", ERRORS) == "ResolutionImpossible: for help visit ..."
    assert why("", "") == "pip said nothing"


def test_pip_writes_a_conflict_as_it_is_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no network to see that the two can't be."""
    (tmp_path / "constraints.txt").write_text("torch<=2.0\n")
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(LookupError, match=r"a constraint of pip allows torch<=2\.0 only"):
        environment("2.99.9", tmp_path / "2.99.9", ())
    assert not (tmp_path / "2.99.9").exists()


def test_what_can_not_be_had_ends_with_69_after_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object) -> str:
        raise LookupError("torch 2.99.9 can't be had here: why")

    monkeypatch.setattr(other_torch, "environment", refuses)
    assert main(["2.99.9"]) == 69
    assert capsys.readouterr().out == "torch 2.99.9 can't be had here: why\n"


def test_one_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / ".ready").touch()
    assert environment("2.14.1", tmp_path, ()) == str(tmp_path / "bin" / "python")


def test_another_torch_is_compared_with_no_recording(tmp_path: Path) -> None:
    other = Recordings("other", tmp_path, "2.14.1")
    assert other("subject", "one", lambda: [1]) == [1]
    assert other.same("subject", "one", lambda: [1]) == [1]
    assert list(tmp_path.iterdir()) == []
