"""`rallypoint generate`: bash, and loaders of YAML and JSON, give back the very words."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.harness.programs import run_program
from tests.harness.properties import examples

from rallypoint.cli.generate.quoting import bash_word, container_word, yaml_value
from rallypoint.cli.main import main
from rallypoint.observe.printing import REPORT_MAX, JsonLine, answer, json_text, printed

ODD = " '\"\\\n\r\t$`!#&;|<>(){}[]*?~=%@:,-\x01\x1b\x7f\x85\xa0\u200d\u202e\u2028\u2029\ufeff\uffff"
UNICODE = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
PARTS = st.sampled_from([*ODD, "$$", "$(NODE_NAME)"]) | UNICODE
WORD = st.lists(PARTS).map("".join)
BYTES = st.binary().map(lambda raw: os.fsdecode(raw.replace(b"\0", b"")))
MANY = [f"--opt-{number}=value-{number}" for number in range(300)]
LONG = ["y" * 1000] * 70
STAND_INS = b"""\
rallypoint() { [[ $1 != token ]] || echo job-00; }
squeue() { :; }
scontrol() { :; }
srun() { printf '%s\\0' "$@"; }
SLURM_JOB_ID=1
"""


def generated(*words: str) -> bytes:
    """Return the bytes that are printed."""
    made = io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(made, "ascii")):
        assert main(["generate", *words]) == 0
        return made.getvalue()


def words_of(script: bytes, locale: str) -> list[str]:
    """Return the words that srun would get from the bash that runs the script."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "train.sbatch"
        path.write_bytes(STAND_INS + script)
        env = {"PATH": os.environ["PATH"], "LC_ALL": locale}
        done: Any = run_program(["bash", path], env=env, cwd=folder, text=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def container_gets(word: str) -> str:
    """Return the word that the kubelet makes of one in a command. It replaces variables that
    the container has, leaves others, and makes a single dollar of a double one."""
    variable = re.compile(r"\$\$|\$\(([^)]*)\)")
    known = re.compile(r"[A-Z_][A-Z0-9_]*")

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return "(a value)" if known.fullmatch(found[1]) else found[0]

    return variable.sub(one, word)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@given(words=st.lists(WORD | BYTES, min_size=1, max_size=8))
@settings(max_examples=examples(120), deadline=None)
@example(words=MANY)
@example(words=LONG)
@example(words=["a\r\nb", "$(id) `id` $HOME 'x' \\", "\udcff\x01f", "\u202eabc", "", "#SBATCH x"])
def test_bash_gives_back_the_very_words(locale: str, words: list[str]) -> None:
    script = generated("slurm", "--", "train.py", *words)
    assert script.decode().replace("\n", "").isprintable()
    assert words_of(script, locale)[-len(words) - 1 :] == ["train.py", *words]


@given(word=WORD | BYTES)
@settings(max_examples=examples(300), deadline=None)
def test_a_word_for_bash_is_printable_and_on_one_line(word: str) -> None:
    assert bash_word(word).isprintable()


@pytest.mark.parametrize("kind", ["--job", "--jobset", "--trainer"])
@given(words=st.lists(WORD, min_size=1, max_size=8))
@settings(max_examples=examples(60), deadline=None)
@example(words=MANY)
@example(words=LONG)
@example(words=["\U0001f600", "\U000e0041\U0010ffff", "$$(NODE_NAME)$", "$(id)", "it's \x7f\x85"])
def test_loaders_of_yaml_and_json_give_back_the_very_words(kind: str, words: list[str]) -> None:
    text = generated("kubernetes", kind, "--image", "me/x", "--", "train.py", *words)
    line = next(each for each in text.decode().split("\n") if '"rallypoint","run"' in each)
    of_json = json.loads(line.partition("command: ")[2])
    commands = list(found_commands(list(yaml.safe_load_all(text))))
    assert of_json in commands
    given = of_json[-len(words) - 1 :]
    assert list(map(container_gets, given)) == ["train.py", *words]
    for sent, word in zip(given[1:], words, strict=True):
        if "$$" not in word and not re.search(r"\$\([A-Z_]", word):
            assert sent == word


def found_commands(value: object) -> list[list[str]]:
    """All within an object."""
    if isinstance(value, list):
        return [found for each in value for found in found_commands(each)]
    if not isinstance(value, dict):
        return []
    own = [value["command"]] if "command" in value else []
    return own + [found for each in value.values() for found in found_commands(each)]


@given(word=st.text(UNICODE))
@settings(max_examples=examples(300), deadline=None)
def test_a_value_is_the_same_in_yaml_and_in_json(word: str) -> None:
    text = yaml_value({"a": [word, 1]})
    assert yaml.safe_load(text) == json.loads(text) == {"a": [word, 1]}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["slurm", "a\0b"], r"'a\x00b': has a NUL, which no word of a command line can have"),
        (["slurm", "python", "t.py"], "python: a program, not a Python script: leave it out (see"),
        (
            ["slurm", "bash", "run.sh"],
            "bash: a program, not a Python script: name the script itself",
        ),
        (
            ["kubernetes", "--image=x", "accelerate", "launch", "t.py"],
            "accelerate: a program, not a Python script: leave out accelerate launch (see",
        ),
        (["kubernetes", "--image=x", "a\0b"], r"'a\x00b': has a NUL"),
        (["kubernetes", "--image=x", "\udcff"], r"'\xff': needs UTF-8: YAML takes nothing else"),
        (
            ["kubernetes", "--image=x", "--annotation=a=\udcff"],
            r"--annotation 'a=\xff': needs UTF-8: YAML takes nothing else",
        ),
    ],
)
def test_a_word_that_a_format_cannot_carry_is_refused_with_one_line(
    line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *line]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"rallypoint generate: {says}")


def test_a_word_without_a_variable_stays_as_it_is_in_a_manifest() -> None:
    assert [container_word(word) for word in ("$x", "$(id)", "a$")] == ["$x", "$(id)", "a$"]
    assert container_word("$(NODE_NAME) $x") == "$$(NODE_NAME) $$x"


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    ("command", "target", "why"),
    [
        ("generate slurm t.py", ">&-", "it is closed"),
        ("generate slurm t.py", ">/dev/full", "No space left on device"),
        ("generate slurm t.py " + "y" * 100_000, "| exec 0<&-", "Broken pipe"),
        # A first write that is a short one, and a second one that fails.
        ("generate slurm t.py", ">out", "File too large"),
        ("completion fish", ">&-", "it is closed"),
        ("completion fish", ">/dev/full", "No space left on device"),
    ],
)
def test_a_text_that_is_not_all_written_is_an_error(
    command: str, target: str, why: str, buffered: str, tmp_path: Path
) -> None:
    line = f"{sys.executable} -m rallypoint {command} {target}; exit ${{PIPESTATUS[0]}}"
    line = f"ulimit -f 1; {line}" if target == ">out" else line
    env = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": buffered, "HOME": str(tmp_path)}
    done = run_program(["bash", "-c", line], env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (75, f"rallypoint: stdout can't be written: {why}\n")


def test_lines_of_json_are_all_printed_whole() -> None:
    lines = [JsonLine(json_text({"number": number, "text": "x" * 9000})) for number in range(20)]
    text = printed(*lines)
    assert len(text) > REPORT_MAX
    assert [json.loads(line)["number"] for line in text.splitlines()] == list(range(20))


def test_json_stays_json_in_an_encoding_that_lacks_its_letters() -> None:
    value = {"name": "caf\u00e9 \u7bc0 \U0001f600"}
    for encoding in ("ascii", "latin-1", "utf-8"):
        made = io.BytesIO()
        with redirect_stdout(io.TextIOWrapper(made, encoding)):
            answer(JsonLine(json_text(value)))
            assert json.loads(made.getvalue().decode(encoding)) == value
