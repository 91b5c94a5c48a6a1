"""What a worker wrote, beside a label in a narrow terminal."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.broken_jobs import CULPRIT, NAN, running

from rallypoint.cli.watch.quoted_text import fitted
from rallypoint.cli.watch.stacks import stacks_lines
from rallypoint.cli.watch.status_text import LINES_MAX, status_lines

PATH = "/opt/conda/envs/training/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
FRAME = f'  File "{PATH}", line 2501, in all_reduce'
LONG = "RuntimeError: " + " ".join(f"tensor {number} has another shape" for number in range(400))


def failed(detail: str, width: int) -> list[str]:
    job = running()
    job.fail_with(CULPRIT, replace(NAN, message=LONG, detail=detail))
    return status_lines(job.view, width)


@pytest.mark.parametrize("width", [64, 80, 120])
def test_a_frame_keeps_its_file_and_the_number_of_its_line(width: int) -> None:
    lines = failed(f"Traceback (most recent call last):\n{FRAME}\n{LONG}", width)
    assert max(map(len, lines)) <= width
    (frame,) = [line for line in lines if "File" in line]
    assert 'c10d.py", line 2501, in al' in frame


def test_a_long_name_of_a_function_does_not_hide_the_line() -> None:
    name = "forward_of_a_module_" * 6
    (line,) = fitted(f'  File "{PATH}", line 2501, in {name}', 60)
    assert len(line) <= 60
    assert 'c10d.py", line 2501, in forward' in line


def test_a_long_text_begins_with_its_first_words_and_takes_few_lines() -> None:
    lines = failed(f"Traceback (most recent call last):\n{FRAME}\n{LONG}", 80)
    assert len(lines) <= LINES_MAX
    at = next(number for number, line in enumerate(lines) if "RuntimeError: tensor 0" in line)
    assert "tensor 1 has another" in " ".join(lines[at : at + 2])
    assert sum("has another" in line for line in lines) == 4
    assert lines[at + 3].endswith("…")


def test_stacks_keep_the_line_behind_a_long_name() -> None:
    name = "forward_of_a_module_" * 6
    stack = f'Current thread 0x7f (most recent call first):\n  File "{PATH}", line 2501 in {name}'
    line = stacks_lines({0: stack}, {}, width=80)[1]
    assert len(line) <= 80
    assert line.endswith("istributed_c10d.py:2501")
