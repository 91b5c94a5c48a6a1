"""The shipped transcripts tell the truth; see `tests/harness/scenario.py` for their language."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness import scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TRANSCRIPTS = sorted(SCENARIOS.glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_transcript_says_what_happens(path: Path) -> None:
    text = path.read_text()
    assert "----\n" in text
    assert scenario.render(text) == text


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 10


def test_a_wrong_trace_is_shown_and_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.txt"
    path.write_text("job nodes=1\njoin a\n----\n* nothing happened\n")
    assert scenario.main([str(tmp_path)]) == 1
    assert "-* nothing happened" in capsys.readouterr().out
    assert scenario.main(["--rewrite", str(tmp_path)]) == 0
    assert "* node a joined\n" in path.read_text()
    assert scenario.main([str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("join a\n", "line 1: the first command must be"),
        ("job nodes=1\nexplode a\n", "line 2: not a command: 'explode a'"),
        ("job nodes=1\njoin a colour=red\n", "line 2: no such setting: 'colour'"),
        ("job nodes=1\nlose b\n", "line 2: node 'b' has never joined"),
        ("job nodes=1\njoin a\nlose a hard=1\n", "line 3: `lose` has no option 'hard'"),
    ],
)
def test_a_bad_command_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        scenario.render(text)
