"""The tree at the head of `errors.py` has every error, below its base."""

from __future__ import annotations

import re

from rallypoint import errors


def drawn_bases(tree: str) -> dict[str, str]:
    """The error above each in the drawing; empty for the root."""
    bases: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in tree.splitlines():
        found = re.match(r"    ([ |+`-]*)(\w+(?:Error|Exception))\b", line)
        if found is not None:
            depth, name = len(found[1]), found[2]
            above = [(other, base) for other, base in above if other < depth]
            bases[name] = above[-1][1] if above else ""
            above.append((depth, name))
    return bases


def base_of(error: type) -> str:
    """The nearest error of ours above it: StoreTimeoutError is a TimeoutError, too."""
    above = [base for base in error.__mro__[1:] if issubclass(base, errors.RallypointError)]
    return above[0].__name__ if above else ""


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    classes = [found for found in vars(errors).values() if isinstance(found, type)]
    ours = [found for found in classes if issubclass(found, errors.RallypointError)]
    assert drawn_bases(errors.__doc__ or "") == {each.__name__: base_of(each) for each in ours}
