"""Whatever differs from torch in a signature, a default, an error or a member has a row with a
reason in docs/from-torchrun.md; a row of which nothing differs any more is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.compat.calls import CALLS, outcomes
from tests.compat.declarations import declared, differences
from tests.compat.recordings import Recordings
from tests.compat.torch_names import OTHER, ours
from tests.compat.torch_objects import (
    declared_by_torch,
    of_ours,
    outcomes_of_torch,
)
from tests.harness.resolver import nobody_asked

PAGE = Path(__file__).parents[2] / "docs" / "from-torchrun.md"
OTHERS = sorted(each.name for each in OTHER.iterdir())


def module_of_ours(path: str) -> Any:
    return import_module(ours(path) if path else "rallypoint.elastic.stores")


def rows() -> dict[str, str]:
    """By pattern: the reason, of the page's table of signatures."""
    text = PAGE.read_text().partition("### Signatures, defaults and errors\n")[2]
    found: dict[str, str] = {}
    for line in text.partition("\n#")[0].splitlines():
        if line.startswith("| `"):
            names, _, reason = line.strip("| ").rpartition(" | ")
            found |= dict.fromkeys(re.findall("`(.*?)`", names), reason)
    return found


def short(name: str) -> str:
    """A name without its modules: `LaunchConfig(role)`; a call stays as it is."""
    return name if name in CALLS else re.sub(r"^(?:[a-z_]+\.)*(?=\w)", "", name)


def matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def unlike(theirs: dict[str, object], ours_: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Calls that end otherwise: an error of ours may be of torch's type among others."""
    for call, their in theirs.items():
        our = ours_[call]
        if our != their:
            yield call, f"{our!r} instead of {their!r}"


def differing(theirs: dict[str, Any]) -> dict[str, str]:
    """By short name, with what differs, of all that torch says."""
    names = theirs["declared"]
    found = differences(names, declared(names, of_ours))
    with nobody_asked():
        mine = outcomes(module_of_ours, like=theirs["calls"])
    return {short(name): how for name, how in found.items()} | dict(unlike(theirs["calls"], mine))


def said_by_torch(torch_said: Recordings) -> dict[str, Any]:
    return {
        "declared": torch_said("declared", "all", declared_by_torch),
        "calls": torch_said("calls", "all", outcomes_of_torch),
    }


def kept(torch: str) -> dict[str, Any]:
    """What a torch said that is not installed."""
    recorded = Recordings("recorded", OTHER / torch, torch)
    return {subject: recorded(subject, "all", dict) for subject in ("declared", "calls")}


@pytest.fixture(scope="module")
def found(torch_said: Recordings) -> dict[str, str]:
    return differing(said_by_torch(torch_said))


def without_row(found: dict[str, str]) -> dict[str, str]:
    known = rows()
    return {
        name: how
        for name, how in found.items()
        if not any(matches(pattern, name) for pattern in known)
    }


def test_what_differs_from_torch_has_a_row_with_a_reason(found: dict[str, str]) -> None:
    assert without_row(found) == {}, "mend it, or say in docs/from-torchrun.md why it differs"


@pytest.mark.parametrize("torch", OTHERS)
def test_so_has_what_differs_from_another_torch(torch: str, torch_said: Recordings) -> None:
    said = kept(torch)
    if torch_said.torch == torch:
        assert said_by_torch(torch_said) == said, "run `python -m tests.compat.torch_objects`"
    assert without_row(differing(said)) == {}


def test_no_row_is_of_something_that_is_as_torchs(found: dict[str, str]) -> None:
    every = set(found).union(*(differing(kept(torch)) for torch in OTHERS))
    stale = [row for row in rows() if not any(matches(row, name) for name in every)]
    assert stale == []


def test_every_row_has_a_reason() -> None:
    assert len(rows()) > 20
    assert [row for row, reason in rows().items() if len(reason) < 10] == []


def test_the_comparison_covers_torchs_launcher_and_stores(torch_said: Recordings) -> None:
    names = torch_said("declared", "all", declared_by_torch)
    assert len(names) > 140
    assert {"TCPStore", "launcher.LaunchConfig", "run.config_from_args"} <= set(names)


THEIRS = {
    "Plain": {
        "is": "class",
        "bases": ["ValueError"],
        "takes": "a, b=1, :c=2, **rest",
        "members": {"work": "(/arg0, x=?)", "LIMIT": "= 3", "name": "attribute"},
        "special": ["__iter__"],
        "hashable": True,
    }
}


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("bases", ["KeyError"], {"Plain:ValueError": "no base class"}),
        ("takes", "b=1, a, :c=2, **rest", dict.fromkeys(["Plain(a)", "Plain(b)"], "another place")),
        ("takes", "a, b=2, :c=2, **rest", {"Plain(b)": "default 2 instead of 1"}),
        ("takes", "a, b=1, **rest", {"Plain(c)": "missing"}),
        ("takes", "a, b=1, :c=2", {"Plain(rest)": "missing"}),
        ("takes", "a, b=1, :c=2, :d=3, **more", {"Plain(d)": "more"}),
        ("takes", "a, b=1, d, :c=2, **rest", {"Plain(d)": "needed"}),
        ("takes", "/a, b=1, :c=2, **rest", {"Plain(a)": "not by name"}),
        ("special", [], {"Plain.__iter__": "missing"}),
        ("hashable", False, {"Plain.__hash__": "missing"}),
        ("closed", True, {"Plain.__dict__": "missing"}),
        ("abstract", ["work"], {"Plain.work": "abstract"}),
    ],
)
def test_a_class_that_is_not_as_torchs_is_told(part: str, value: object, said: object) -> None:
    assert differences(THEIRS, {"Plain": THEIRS["Plain"] | {part: value}}) == said


@pytest.mark.parametrize(
    ("member", "value", "how"),
    [
        ("work", "(key)", "Plain.work(x)"),
        ("work", "= 1", "Plain.work"),
        ("LIMIT", "= 4", "Plain.LIMIT"),
    ],
)
def test_a_member_that_is_not_as_torchs_is_told(member: str, value: str, how: str) -> None:
    plain: Any = THEIRS["Plain"]
    ours_ = {"Plain": plain | {"members": plain["members"] | {member: value}}}
    assert list(differences(THEIRS, ours_)) == [how]


def test_names_for_what_torch_takes_by_place_and_a_further_default_are_no_difference() -> None:
    plain: Any = THEIRS["Plain"]
    members = plain["members"] | {"work": "(key, x=5)", "more": "()"}
    assert differences(THEIRS, {"Plain": plain | {"members": members}}) == {}


def test_what_is_missing_is_told() -> None:
    assert differences(THEIRS, {}) == {"Plain": "missing"}
    assert differences({"a.LIMIT": {"is": "value", "value": 1}}, {"a.LIMIT": {"is": "value"}}) == {
        "a.LIMIT": "None instead of 1"
    }
