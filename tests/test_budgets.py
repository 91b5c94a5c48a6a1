"""How much code there may be, and how many docstrings a reader has to decode: numbers that a
commit changes on purpose (`tools/budgets.toml`). And how long a sentence for people may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tools.code_lines import (
    NOT_OURS,
    ROOT,
    Group,
    code_lines,
    count_groups,
    judge_budget,
    lies_under,
    read_budgets,
)
from tools.plain_english import WORDS_MAX, is_riddle, long_sentences, riddles

GROUPS, LESS = read_budgets()


@cache
def repository() -> tuple[dict[str, int], int, list[str]]:
    """The lines of each group, the number of riddles in the source, and its long sentences, each
    with its place. Reads each file once."""
    found: list[object] = []
    long: list[str] = []

    def look(path: str, tree: ast.Module) -> None:
        if path.startswith("src/"):
            found.extend(riddles(tree))
            long.extend(f"{path}:{line}: {text}" for line, text in long_sentences(tree))

    return count_groups(GROUPS, look=look), len(found), long


def test_each_part_of_the_repository_keeps_its_budget() -> None:
    lines, *_ = repository()
    said = [judge_budget(group.name, group.budget, lines[group.name]) for group in GROUPS]
    assert [line for line in said if line] == []


def test_no_more_docstrings_begin_with_a_word_that_names_nothing() -> None:
    _, number, _ = repository()
    assert judge_budget("src", LESS["riddles"], number, "riddles (tools/plain_english.py)") is None


def test_no_sentence_that_people_read_has_more_than_25_words() -> None:
    assert repository()[2] == []


WORDS = " ".join(["word"] * WORDS_MAX)


@pytest.mark.parametrize(
    ("source", "is_long"),
    [
        (f'raise E("{WORDS}")', False),
        (f'raise E("{WORDS} more")', True),
        (f'raise E("{WORDS} " "more")', True),
        (f'raise E(f"{WORDS} {{x}}")', True),
        (f'raise E(f"{WORDS}. {{x.y(1)}} - {{z}}")', False),
        (f"x = '''{WORDS}\n\nmore\n  and more'''", False),
        (f'def f():\n    """{WORDS} more"""', False),
        (f'class A:\n    x = 1\n    """{WORDS} more"""', False),
        (f"x = '''\n{WORDS} more'''", False),
    ],
)
def test_a_long_sentence_is_found_in_a_text_that_is_no_docstring(
    source: str, is_long: bool
) -> None:
    assert bool(long_sentences(ast.parse(source))) is is_long


def test_groups_are_made_of_paths_that_exist() -> None:
    paths = [path for group in GROUPS for path in group.paths]
    assert [path for path in [*paths, *NOT_OURS] if not (ROOT / path).exists()] == []
    assert len(set(paths)) == len(paths)
    assert {"src/rallypoint", "tests"} <= set(paths)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""Head.\n\nMore.\n"""\n\n# why\nx = 1  # so\n', 1),
        ("def f():\n    '''It.'''\n    return (\n        # why\n        1,\n    )\n", 4),
        ('class A:\n    x: int = 0\n    """Its\n    use."""\n', 2),
        ('x = """\n# no comment\n\n"""\n', 4),
        ('x = f"""\n{1}\n\n"""\n', 4),
        ('"""A"""; x = 1\n', 0),
        ("", 0),
    ],
)
def test_a_line_of_code_is_no_comment_docstring_or_blank(source: str, lines: int) -> None:
    assert code_lines(source) == lines


def test_a_file_counts_for_the_group_with_the_longest_path(tmp_path: Path) -> None:
    for path, lines in (("a/x.py", 1), ("a/b/y.py", 2), ("a/bc/z.py", 4), ("a/b/w.py", 8)):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * lines)
    groups = [Group("all", ("a",), 9), Group("b", ("a/b",), 9), Group("w", ("a/b/w.py",), 9)]
    assert count_groups(groups, tmp_path) == {"all": 5, "b": 2, "w": 8}
    assert lies_under("tests/causes/programs/a.py", NOT_OURS[0])


def test_a_group_over_its_budget_is_refused_with_what_to_do() -> None:
    over = judge_budget("product", 1000, 1012) or ""
    assert "product has 1,012 lines of code, 12 above its budget" in over
    assert "raise the number in tools/budgets.toml, in a commit whose message says" in over
    assert "what the capability costs and what it has removed" in over
    assert judge_budget("product", 1000, 1000) is judge_budget("product", 1000, 980) is None
    assert "lower the number in tools/budgets.toml to 979" in str(judge_budget("x", 1000, 979))


@pytest.mark.parametrize(
    ("docstring", "riddle"),
    [
        ("Of the agent.", True),
        ("\n  That no other coordinator has.", True),
        ("In which it lies.", True),
        ("It's theirs.", True),
        ("Return the number of nodes.", False),
        ("In order of ranks.", False),
        ("Offers of heirs.", False),
        ("Assignments.", False),
    ],
)
def test_a_docstring_names_the_thing(docstring: str, riddle: bool) -> None:
    assert is_riddle(docstring) is riddle


def test_riddles_are_listed_with_their_places(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""A module."""\nx: int = 0\n"""Who asks."""\ndef f():\n    """By whom."""\n'
        f'f("{WORDS} more")\n'
    )
    program = ROOT / "tools" / "plain_english.py"
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert [line.rpartition("a.py:")[2] for line in done.stdout.splitlines()] == [
        "3: Who asks.",
        "5: By whom.",
        f"6: {WORDS} more",
        "2 docstrings begin with a word that names nothing",
        "1 sentences have more than 25 words",
    ]
