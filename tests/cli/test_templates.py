"""How the texts that `rallypoint generate` prints are made of their templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.cli.generate import quoting
from rallypoint.cli.generate.quoting import filled

TEMPLATES = Path(quoting.__file__).parent / "templates"


@pytest.mark.parametrize(
    ("source", "values", "text"),
    [
        ("a: ${a}-${b}", {"a": 1, "b": ""}, "a: 1-"),
        ("a: ${a}\nb: ${b}\nc", {"a": 1, "b": None}, "a: 1\nc"),
        ("a  ${a?}\nb  ${b?}", {"a": [1], "b": None}, "a"),
        ("x:\n  ${a}", {"a": "k:\n  l: 1"}, "x:\n  k:\n    l: 1"),
        ("a: ${a}", {"a": "${b} $(c) ${a?}"}, "a: ${b} $(c) ${a?}"),
        ("${A:-0} $(a) $a ${a:-$B}", {}, "${A:-0} $(a) $a ${a:-$B}"),
    ],
)
def test_a_template_is_filled(source: str, values: dict[str, object], text: str) -> None:
    assert filled(source, values) == f"{text}\n"


def test_a_name_without_a_value_is_a_fault() -> None:
    with pytest.raises(KeyError, match="b"):
        filled("${b}", {"a": 1})


def test_templates_have_no_tabs_and_end_with_a_line() -> None:
    files = sorted(TEMPLATES.iterdir())
    assert len(files) > 5
    for file in files:
        text = file.read_text()
        assert text.endswith("\n")
        assert "\t" not in text
