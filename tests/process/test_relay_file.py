"""A rotated log file: nothing lost, whole lines where they fit, no character torn."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rallypoint.process.relay.sinks import LogFile


class Rotations(LogFile):
    """Remembers each file that was complete."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(os.fsencode(path), limit)
        self.file, self.complete = path, list[bytes]()

    def _rotate(self) -> None:
        self.complete.append(self.file.read_bytes())
        super()._rotate()
        assert self.old.read_bytes() == self.complete[-1]

    @property
    def old(self) -> Path:
        return self.file.with_name(self.file.name + ".1")

    def end(self) -> list[bytes]:
        self.close()
        return [*self.complete, self.file.read_bytes()]


def test_an_unlimited_file_grows(tmp_path: Path) -> None:
    file = Rotations(tmp_path / "log", 0)
    for _ in range(100):
        file.write(b"x" * 100 + b"\n")
    assert len(file.end()) == 1


def test_it_is_rotated_between_lines_and_one_older_is_kept(tmp_path: Path) -> None:
    file = Rotations(tmp_path / "log", 100)
    for number in range(50):
        file.write(b"line %03d of fifty\n" % number)
    parts = file.end()
    assert b"".join(parts) == b"".join(b"line %03d of fifty\n" % n for n in range(50))
    assert [len(part) for part in parts] == [90] * 10
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]


def test_a_line_that_began_before_the_limit_is_finished(tmp_path: Path) -> None:
    file = Rotations(tmp_path / "log", 100)
    file.write(b"a" * 90)
    file.write(b"b" * 30)
    file.write(b"c\nnext\n")
    assert file.end() == [b"a" * 90 + b"b" * 30 + b"c\n", b"next\n"]


def test_a_line_that_does_not_end_is_cut_between_characters(tmp_path: Path) -> None:
    file = Rotations(tmp_path / "log", 100)
    text = "\N{ROCKET}" * 1000
    data = text.encode()
    for at in range(0, len(data), 70):
        file.write(data[at : at + 70])
    parts = file.end()
    assert b"".join(parts) == data
    assert all(len(part) <= 200 for part in parts)


def test_an_existing_file_is_continued_and_its_size_counts(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"o" * 89 + b"\n")
    file = Rotations(tmp_path / "log", 100)
    file.write(b"n" * 20 + b"\n")
    assert file.end() == [b"o" * 89 + b"\n", b"n" * 20 + b"\n"]


def test_a_file_that_was_taken_away_is_begun_anew(tmp_path: Path) -> None:
    file = LogFile(os.fsencode(tmp_path / "log"), 10)
    file.write(b"12345678\n")
    (tmp_path / "log").unlink()
    file.write(b"12345678\n")
    file.close()
    assert os.listdir(tmp_path) == ["log"]


def test_a_file_that_cant_be_rotated_grows_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "log.1").mkdir()  # nothing can be renamed to this
    file = LogFile(os.fsencode(tmp_path / "log"), 10)
    file.write(b"12345678\n")
    with pytest.raises(OSError):
        file.write(b"second\n")
    file.write(b"third\n")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"12345678\nsecond\nthird\n"


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        LogFile(os.fsencode(tmp_path / "pipe"), 0)


def test_what_is_no_plain_file_is_not_renamed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file = LogFile(os.fsencode(tmp_path / "pipe"), 4)
    file.write(b"first\nsecond\n")
    file.close()
    assert os.read(reader, 100) == b"first\nsecond\n"
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@settings(deadline=None)
@given(
    limit=st.integers(1, 64),
    pieces=st.lists(
        st.text(alphabet="a\N{ROCKET}\N{LATIN SMALL LETTER E WITH ACUTE}\n", max_size=90)
    ),
    cut=st.integers(1, 40),
)
def test_nothing_is_lost_and_every_file_is_bounded(limit: int, pieces: list[str], cut: int) -> None:
    data = "".join(pieces).encode()
    with TemporaryDirectory() as folder:
        file = Rotations(Path(folder) / "log", limit)
        for at in range(0, len(data), cut):
            file.write(data[at : at + cut])
        parts = file.end()
    assert b"".join(parts) == data
    assert all(parts[:-1])
    for part, following in itertools.pairwise(parts):
        assert len(part) <= 2 * limit + 3  # the rest of a character that began in time
        if not part.endswith(b"\n"):
            assert len(part) >= 2 * limit  # a long line
            assert following[0] & 0xC0 != 0x80  # no character is torn
