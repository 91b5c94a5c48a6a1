"""What the real torch and torchrun said, kept in files, so that most tests need not ask them again.

`--torch=recorded` (the default) reads the files; `--torch=real` asks, and what is said must be what
the files have; `--torch=record` asks, and writes the files. `make compat` and `make record` do so.
`--torch=other` asks a torch of another version, of which there are no files: `make compat TORCH=V`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rallypoint.torch_versions import KNOWN, VERSIONS, Known, is_later

FOLDER = Path(__file__).with_name("recorded")


def installed() -> str:
    """The version of torch, without how it was built: "2.13.0"."""
    return version("torch").partition("+")[0]


class Recordings:
    """A file for each subject, with one answer for each question."""

    def __init__(self, mode: str, folder: Path = FOLDER, torch: str = "") -> None:
        self._mode, self._folder = mode, folder
        self.torch = torch or installed()
        self._asked: dict[tuple[str, str], str] = {}

    @property
    def minor(self) -> str:
        """The version as the table of `rallypoint.torch_versions` has it: "2.13"."""
        minor = ".".join(self.torch.split(".")[:2])
        assert minor in VERSIONS, f"torch {minor} is not among the VERSIONS of torch_versions.py"
        return minor

    def has(self, row: Known) -> bool:
        """Whether this torch is as new as a row of the table."""
        return not is_later(row.since, self.minor)

    def need(self, name: str) -> None:
        """Skips the test where the table says that this torch does not have it yet."""
        (row,) = (row for row in KNOWN if row.name == name)
        if not self.has(row):
            pytest.skip(f"{name} came with torch {row.since}, this is {self.torch}")

    def __call__(self, subject: str, question: str, ask: Callable[[], object]) -> Any:
        """The answer, as JSON has it; `ask()` gets it from the real one."""
        if self._mode == "recorded":
            return self._kept(subject, question)
        if (subject, question) not in self._asked:
            self._asked[subject, question] = json.dumps(ask())
        answer = json.loads(self._asked[subject, question])
        if self._mode == "other":
            return answer
        if self._mode == "record":
            self._write(subject)
        else:
            assert answer == self._kept(subject, question), (
                "the recording is old: run `make record`"
            )
        return answer

    def same(self, subject: str, question: str, ask: Callable[[], object]) -> Any:
        """Asks the real one in every mode; its answer is the one that was recorded."""
        answer = json.loads(json.dumps(ask()))
        assert answer == self(subject, question, lambda: answer), "run `make record`"
        return answer

    def _kept(self, subject: str, question: str) -> Any:
        path = self._folder / f"{subject}.json"
        kept = json.loads(path.read_text())
        told = f"{path.name} was recorded with torch {kept['torch']}"
        assert kept["torch"] == self.torch, f"{told}, installed is {self.torch}: run `make record`"
        assert question in kept["answers"], f"{path.name} has no {question!r}: run `make record`"
        return kept["answers"][question]

    def _write(self, subject: str) -> None:
        answers = {q: json.loads(a) for (s, q), a in sorted(self._asked.items()) if s == subject}
        text = json.dumps({"torch": self.torch, "answers": answers}, indent=1, ensure_ascii=False)
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{subject}.json").write_text(text + "\n")
