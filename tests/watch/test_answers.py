"""Answers of a coordinator of another version of Rallypoint."""

from __future__ import annotations

import pytest

from rallypoint.cli.watch.asking.reach import decoded
from rallypoint.core.watch.job_view import JobLine
from rallypoint.errors import UsageError


def test_an_answer_of_another_version_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"in another form .*: it runs another version") as error:
        decoded(b'[{"job": 1}]', list[JobLine])
    assert "\n" not in str(error.value)
