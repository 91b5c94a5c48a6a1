"""The table of settings: each thing is said once, and one more setting is one more row."""

from __future__ import annotations

import ast
import json
import re
from enum import Enum
from pathlib import Path

import pytest
from tests.harness.command_line import parse
from tests.harness.programs import run_python

from rallypoint.cli import values
from rallypoint.cli.options import default_of
from rallypoint.config import SECTIONS, Endpoint
from rallypoint.core import limits
from rallypoint.core.settings import BY_FIELD, FLAGS, KEYS, SETTINGS, Setting, SharedSettings
from rallypoint.elastic.rendezvous.api import RendezvousParameters
from rallypoint.elastic.rendezvous.led.parameters import read_parameters
from rallypoint.errors import ParameterError, UsageError

PACKAGE = Path(__file__).parents[2] / "src" / "rallypoint"
READ_WITH_OTHERS = {"workers", "phases", "ranks", "logs_specs", "event_handler", "place"}


def test_every_setting_that_nodes_compare_is_in_the_table() -> None:
    assert set(SharedSettings.__struct_fields__) <= set(BY_FIELD)


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.flag or row.field)
def test_a_row_is_about_one_field_of_one_struct(row: Setting) -> None:
    holders = [kind for kind in SECTIONS.values() if row.field in kind.__struct_fields__]
    assert holders == ([SECTIONS[row.section]] if row.target else [])
    assert row.kind in values.PLAIN | READ_WITH_OTHERS


@pytest.mark.parametrize("row", [r for r in SETTINGS if r.kind == "choice"], ids=lambda r: r.flag)
def test_a_choice_has_the_words_that_the_default_is_one_of(row: Setting) -> None:
    words = row.metavar.split("|")
    for kind in SECTIONS.values():
        names, last = kind.__struct_fields__, kind.__struct_defaults__
        default = dict(zip(names[len(names) - len(last) :], last, strict=True)).get(row.field)
        if isinstance(default, Enum):
            assert set(words) == {word.value for word in type(default)}
    shown = default_of(row)
    assert not shown or shown in words


def test_no_module_copies_settings_from_one_struct_into_another() -> None:
    """Settings that nodes compare travel whole: copies by name would have to know of each."""
    names = set(SharedSettings.__struct_fields__) - {"run_id", "min_nodes", "max_nodes"}
    copied = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if sum(name in text for name in names) <= 1:
            continue
        for call in ast.walk(ast.parse(text)):
            given = call.keywords if isinstance(call, ast.Call) else []
            same = [k.arg for k in given if isinstance(k.value, ast.Attribute)]
            if len(names.intersection(same)) > 1:
                copied.append(f"{path.name}: {', '.join(map(str, same))}")
    assert copied == []


def test_a_message_has_the_ranges_of_the_command_line() -> None:
    for name in SharedSettings.__struct_fields__:
        row = BY_FIELD[name]
        if row.kind in ("seconds", "integer"):
            assert limits.RANGES[name] == (row.least, row.most)


# One more setting, by two edits of one file: nothing else knows of it.
FIELD = "    stop_patience_s: float = 60.0\n"
ROW = "FAILURES = (\n"
NEW = (
    '    _own("--fuse", "SECONDS", "how long",\n'
    '         "seconds", "rendezvous.fuse_s", most=9, key="tcp"),\n'
)
PATCH = [
    (FIELD, f"    fuse_s: float = 4.0\n{FIELD}"),
    (ROW, ROW + NEW),
]
SCRIPT = """
import importlib.abc, importlib.machinery, json, sys
sys.path[:0] = [sys.argv[3]]
path, patch = sys.argv[1], json.loads(sys.argv[2])

class Patched(importlib.machinery.SourceFileLoader):
    def get_data(self, name):
        data = super().get_data(name)
        for old, new in patch:
            assert data.count(old.encode()) == 1, old
            data = data.replace(old.encode(), new.encode())
        return data
    def get_code(self, fullname):
        return self.source_to_code(self.get_data(path), path)

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "rallypoint.core.settings":
            loader = Patched(name, path)
            return importlib.machinery.ModuleSpec(name, loader, origin=path)

sys.meta_path.insert(0, Finder())

from rallypoint.cli.options import RUN, default_of, parse_run
from rallypoint.cli.parser import help_text
from rallypoint.core.messages import Attach
from rallypoint.core.text import settings_conflict
from rallypoint.errors import RallypointError
from rallypoint.elastic.launcher.api import LaunchConfig, agent_config
from rallypoint.wire.codec import decode_to_coordinator, encode
from tools_flags import with_flags

def run(*words, **environ):
    return parse_run(["--rdzv-id", "a", *words, "--no-python", "true"], environ).rendezvous

def refusal(call, *given, **named):
    try:
        call(*given, **named)
    except RallypointError as error:
        return str(error)

def library(**conf):
    config = LaunchConfig(1, 2, 1, rdzv_endpoint="a", rdzv_configs=conf)
    return agent_config(config, "true", ()).rendezvous

page = open(sys.argv[4]).read()
given, default = run("--fuse", "7"), run()
differences = default.shared().differences(given.shared())
hello = Attach("n", "h", "i", 1, given.shared())
print(json.dumps({
    "parsed": [default.fuse_s, given.fuse_s, run(RALLYPOINT_FUSE="3").fuse_s],
    "library": [library().fuse_s, library(fuse=5).fuse_s],
    "sent": decode_to_coordinator(encode(hello)).settings.fuse_s,
    "conflict": str(settings_conflict(differences)),
    "refused": [
        refusal(run, "--fuse", "10"), refusal(run, "--fuse", "x"), refusal(library, fuse=10),
        refusal(decode_to_coordinator, encode(
            Attach("n", "h", "i", 1, type(given.shared())("job", fuse_s=10.0)))),
    ],
    "help": [line for line in help_text(RUN, default_of).splitlines() if "--fuse" in line],
    "page": [line for line in with_flags(page).splitlines() if "--fuse" in line],
}))
"""


def test_one_more_setting_of_the_job_is_one_field_and_one_row(tmp_path: Path) -> None:
    root = PACKAGE.parents[1]
    (tmp_path / "tools_flags.py").write_text((root / "tools" / "flags_page.py").read_text())
    arguments = [
        str(PACKAGE / "core" / "settings.py"),
        json.dumps(PATCH),
        str(tmp_path),
        str(root / "docs" / "from-torchrun.md"),
    ]
    done = run_python(SCRIPT, *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["parsed"] == [4.0, 7.0, 3.0]
    assert found["library"] == [4.0, 5.0]
    assert found["sent"] == 7.0
    assert found["conflict"] == (
        "this node was started with fuse_s=7.0 but the job runs with fuse_s=4.0: start every "
        "node of a job with the same --fuse (fuse_s)"
    )
    assert found["refused"] == [
        "--fuse 10: must be 0 to 9",
        "--fuse x: needs a number of seconds",
        "the rendezvous parameter fuse=10: must be 0 to 9",
        "Attach.settings.fuse_s = 10.0 (needs 0 to 9)",
    ]
    assert found["help"] == ["  --fuse SECONDS             how long (4)"]
    (line,) = found["page"]
    assert line.startswith("| Failures | `--fuse`, ")


def test_keys_that_a_flag_gives_are_no_keys_of_the_command_line() -> None:
    assert not {row.name for row in KEYS} & {row.name for row in FLAGS.values()}
    for row in FLAGS.values():
        if row.key in ("tcp", "any"):
            why = f"{row.name} is no key but an option: give {row.flag}"
            with pytest.raises(UsageError, match=why):
                parse(f"--nnodes 2 --rdzv-endpoint a --rdzv-conf {row.name}=1 train.py")


def test_any_port_will_do_for_one_node_of_a_program() -> None:
    one = RendezvousParameters("tcp", "localhost:0", "job", 1, 1)
    assert read_parameters(one).config.endpoint == Endpoint("localhost", 0)
    with pytest.raises(ParameterError, match="endpoint 'localhost:0': port 0 is any free port"):
        read_parameters(RendezvousParameters("tcp", "localhost:0", "job", 1, 2))


@pytest.mark.parametrize("text", ["a:b", "a:", "a:70000", "[::1", "fe80::1:x", "tcp://a:1", "a b"])
def test_an_endpoint_is_refused_for_the_same_reason_in_a_command_and_in_a_program(
    text: str,
) -> None:
    with pytest.raises(UsageError) as command:
        values.endpoint(values.Given(text, "origin"))
    with pytest.raises(ParameterError) as program:
        read_parameters(RendezvousParameters("tcp", text, "job", 1, 2))
    _, _, why = str(command.value).partition(": ")
    assert str(program.value) == f"the endpoint {text!r}: {why}"
    assert re.search("needs|valid port|written|missing", why)


def test_only_seconds_may_be_above_zero_since_no_other_reader_looks() -> None:
    assert [row.flag for row in SETTINGS if row.above_zero and row.kind != "seconds"] == []
