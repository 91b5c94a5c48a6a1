"""Names of many nodes in few words, and which are missing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rallypoint.core.watch.names import fold_names, gaps_in_names


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["login"], "login"),
        (["gpu-1"], "gpu-1"),
        (["gpu-10", "gpu-2", "gpu-1"], "gpu-[1-2,10]"),
        (["n01", "n02", "n03", "n10"], "n[01-03,10]"),
        (["b1", "login", "a2", "a3"], "a[2-3], b1, login"),
        (["1", "2", "3"], "[1-3]"),
    ],
)
def test_names_that_differ_by_a_number_are_one_word(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["n1", "n3"], ["n2"]),
        (["n01", "n04"], ["n02", "n03"]),
        (["n1", "n2"], []),
        (["n1"], []),
        (["n1", "m3"], []),
        (["n1", "login"], []),
        (["n1", "n900"], []),
    ],
)
def test_a_gap_in_the_numbers_is_a_missing_node(names: list[str], missing: list[str]) -> None:
    assert gaps_in_names(names) == missing


@given(st.sets(st.integers(0, 200), min_size=2))
def test_gaps_and_names_together_have_no_gap(numbers: set[int]) -> None:
    names = [f"gpu-{number}" for number in numbers]
    gaps = gaps_in_names(names)
    assert not set(gaps) & set(names)
    if gaps:
        assert gaps_in_names([*gaps, *names]) == []
