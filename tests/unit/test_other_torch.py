"""What `make compat TORCH=VERSION` says of a version that it can't have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.recordings import Recordings
from tools.other_torch import CANNOT_BE_HAD, environment, main


@pytest.mark.parametrize("word", ["", "newest", "2", "2.14.1; rm", "--help"])
def test_what_is_no_version_is_said_in_one_line(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word]) == CANNOT_BE_HAD
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


def test_one_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / ".ready").touch()
    assert environment("2.14.1", tmp_path, ()) == str(tmp_path / "bin" / "python")


def test_another_torch_is_compared_with_no_recording(tmp_path: Path) -> None:
    other = Recordings("other", tmp_path, "2.14.1")
    assert other("subject", "one", lambda: [1]) == [1]
    assert other.same("subject", "one", lambda: [1]) == [1]
    assert list(tmp_path.iterdir()) == []
