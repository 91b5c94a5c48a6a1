"""Events as a library: what they hold, and how they reach a file, a logger or a package."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.harness.plug_ins import offer_event_handler
from tests.harness.programs import run_python

from rallypoint.elastic.events import (
    Event,
    EventSource,
    NodeState,
    RdzvEvent,
    flush_events,
    get_logging_handler,
    make_event_handler,
    record,
)
from rallypoint.errors import ParameterError

PRINTING = """
class make:
    def __init__(self, argument): pass
    def handle(self, event): print(event.serialize(), flush=True)
    def close(self): pass
"""
"""A handler of a package that prints what it gets."""
DEVICE_THAT_IS_FULL = Path("/dev/full")
NUL = (
    "open: embedded null character in path" if sys.version_info >= (3, 13) else "embedded null byte"
)
EVENTS = "from rallypoint.elastic.events import *\n"


def run(program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """A program of its own that has the names of the library's events, with these folders to
    import from."""
    found = os.pathsep.join([*map(str, paths), *sys.path])
    return run_python(EVENTS + program, env=os.environ | {"PYTHONPATH": found})


def names_in(file: Path) -> list[str]:
    return [json.loads(line)["name"] for line in file.read_text().splitlines()]


def test_W18_an_event_has_a_true_time_in_milliseconds_and_an_id_of_its_own() -> None:
    before = time.time_ns() // 1_000_000
    first, second = (Event("a", EventSource.AGENT, metadata={"round": 3}) for _ in range(2))
    assert before <= first.timestamp <= time.time_ns() // 1_000_000
    assert len(first.id) == 16
    assert first.id != second.id
    assert (first.round, first.reason) == (3, "")


def test_an_event_survives_its_json() -> None:
    event = Event(
        "a",
        EventSource.WORKER,
        metadata={"text": "né\n", "n": 3, "f": 0.5, "yes": True, "none": None, "reason": "r"},
    )
    line = event.serialize()
    assert "\n" not in line
    assert str(event) == line
    assert Event.deserialize(line) == event
    assert Event.deserialize(event) is event
    assert Event.deserialize(line).reason == "r"
    assert "id" not in Event.deserialize('{"name": "a", "source": "AGENT"}').metadata


def test_text_with_bytes_that_are_no_utf_8_is_told_all_the_same() -> None:
    event = Event("a", EventSource.AGENT, metadata={"path": "caf\udce9"})
    assert json.loads(event.serialize())["metadata"]["path"] == "caf\udce9"


def test_a_rendezvous_event_survives_its_json_and_is_recorded_with_a_time() -> None:
    event = RdzvEvent("n", "run", "why", "host", 7, NodeState.FAILED, rank=2, error_trace="t")
    assert RdzvEvent.deserialize(event.serialize()) == event
    told = event.as_event()
    assert told.timestamp > 0
    assert told.metadata["node_state"] == "FAILED"
    assert (told.name, told.reason, told.metadata["rank"]) == ("n", "why", 2)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 3}', '{"name": "a", "source": "X"}'])
def test_what_is_no_event_is_refused_with_what_it_was(text: str) -> None:
    with pytest.raises(ParameterError, match="is not a serialised event"):
        Event.deserialize(text)


def test_recorded_events_are_in_the_file_in_their_order_when_the_program_ends(
    tmp_path: Path,
) -> None:
    file = tmp_path / "events"
    program = f"""
for n in range(5000):
    record(Event(str(n), EventSource.AGENT), "jsonl:{file}")
raise SystemExit(3)
"""
    assert run(program).returncode == 3
    assert names_in(file) == [str(n) for n in range(5000)]


def test_a_line_is_appended_behind_what_is_there(tmp_path: Path) -> None:
    file = tmp_path / "events"
    file.write_text("older\n")
    record(Event("a", EventSource.AGENT), f"jsonl:{file}")
    flush_events()
    record(Event("b", EventSource.AGENT), f"jsonl:{file}")
    flush_events()
    lines = file.read_text().splitlines()
    assert [lines[0], *(json.loads(line)["name"] for line in lines[1:])] == ["older", "a", "b"]


def test_the_console_is_stderr_and_null_is_nothing() -> None:
    ran = run(
        "record(Event('seen', EventSource.AGENT), 'console')\n"
        "record(Event('unseen', EventSource.AGENT))\n"
    )
    assert ran.stdout == ""
    assert [json.loads(line)["name"] for line in ran.stderr.splitlines()] == ["seen"]


@pytest.mark.skipif(not DEVICE_THAT_IS_FULL.exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line_with_a_count() -> None:
    ran = run("for n in range(3): record(Event('a', EventSource.AGENT), 'jsonl:/dev/full')\n")
    assert ran.returncode == 0
    assert ran.stderr.splitlines() == [
        "rallypoint: events were lost (jsonl:/dev/full): 3 failed: No space left on device"
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nope", "there is no such handler; there are: console, jsonl:FILE, null"),
        ("null:x", "null takes no argument"),
        ("jsonl:", "needs a file: jsonl:FILE"),
        ("jsonl", "needs a file: jsonl:FILE"),
        ("jsonl:/no/such/file", "can't be written: No such file or directory"),
        ("jsonl:/", "can't be written: Is a directory"),
        ("jsonl:a\0b", f"can't be written: {NUL}"),
    ],
)
def test_a_handler_that_there_is_not_is_refused_in_one_line(spec: str, said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make_event_handler(spec)
    assert said in str(caught.value)
    assert str(caught.value).startswith("event log handler ")
    assert "\n" not in str(caught.value)


def test_a_handler_that_there_is_not_is_a_key_error_as_with_torch() -> None:
    for ask in (get_logging_handler, lambda name: record(Event("a", EventSource.AGENT), name)):
        with pytest.raises(KeyError) as caught:
            ask("nope")
        told = "event log handler 'nope': there is no such handler; there are: console"
        assert str(caught.value).startswith(told)
        assert isinstance(caught.value, ParameterError)


def test_a_package_offers_a_handler_and_gets_the_text_after_the_colon(tmp_path: Path) -> None:
    offer_event_handler(
        tmp_path,
        "mine",
        "my_events",
        "class make:\n"
        "    def __init__(self, argument): print('made', argument)\n"
        "    def handle(self, event): print('got', event.name)\n"
        "    def close(self): print('closed', flush=True)\n",
    )
    ran = run(
        "print(known_event_handlers())\nrecord(Event('a', EventSource.AGENT), 'mine:x:y')\n",
        tmp_path,
    )
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == [
        "['console', 'jsonl', 'mine', 'null']",
        "made x:y",
        "got a",
        "closed",
    ]


def test_a_handler_of_logging_gets_the_json_as_its_message(tmp_path: Path) -> None:
    offer_event_handler(
        tmp_path,
        "logs",
        "log_events",
        "import logging, sys\ndef make(argument): return logging.StreamHandler(sys.stdout)\n",
    )
    ran = run(
        "record(Event('a', EventSource.AGENT), 'logs')\n",
        tmp_path,
    )
    assert json.loads(ran.stdout)["name"] == "a"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def make(argument): return 3", "TypeError: 3 has no handle(event) and close()"),
        ("import sys; sys.exit(5)", "SystemExit: 5"),
        ("raise ValueError('a\\nb')", r"ValueError: 'a\nb'"),
    ],
)
def test_a_handler_of_a_package_that_cant_be_made_is_one_line(
    tmp_path: Path, text: str, why: str
) -> None:
    offer_event_handler(tmp_path, "bad", "bad_events", text)
    ran = run(
        "from rallypoint.errors import ParameterError\n"
        "try: make_event_handler('bad')\n"
        "except ParameterError as error: print(error)\n",
        tmp_path,
    )
    assert ran.stdout.splitlines() == [
        "event log handler bad: that of the package bad_events could not be created: " + why
    ]


def test_rendezvous_events_go_to_a_package_that_wants_them_and_else_cost_nothing(
    tmp_path: Path,
) -> None:
    program = (
        "def step():\n"
        "    try: 1 / 0\n"
        "    except ZeroDivisionError:\n"
        "        construct_and_record_rdzv_event('run', 'why', NodeState.FAILED, rank=1)\n"
        "step()\n"
    )
    assert run(program).stdout == ""
    offer_event_handler(
        tmp_path,
        "dynamic_rendezvous",
        "rdzv_events",
        PRINTING,
    )
    told = json.loads(run(program, tmp_path).stdout)
    assert told["name"] == "<string>:step"
    assert told["metadata"]["node_state"] == "FAILED"
    assert "ZeroDivisionError" in told["metadata"]["error_trace"]


RENDEZVOUS = """
from rallypoint.elastic.rendezvous import RendezvousParameters
from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import create_handler_from
given = ("c10d", "127.0.0.1:0", "job", 1, 1, "127.0.0.1")
handler = create_handler_from(RendezvousParameters(*given, is_host=True, insecure=True))
handler.next_rendezvous()
handler.set_closed()
try:
    handler.next_rendezvous()
except Exception:
    pass
handler.shutdown()
flush_events()
"""


def test_a_handler_and_its_backend_record_the_steps_of_a_rendezvous(tmp_path: Path) -> None:
    assert run(RENDEZVOUS).stdout == ""
    offer_event_handler(tmp_path, "dynamic_rendezvous", "rdzv_events", PRINTING)
    lines = [json.loads(line) for line in run(RENDEZVOUS, tmp_path).stdout.splitlines()]
    steps = [(line["name"], line["metadata"]["node_state"]) for line in lines]
    handler = "dynamic_rendezvous.py:DynamicRendezvousHandler"
    assert steps == [
        ("c10d_rendezvous_backend.py:create_backend", "INIT"),
        (f"{handler}.next_rendezvous", "RUNNING"),
        (f"{handler}.next_rendezvous", "RUNNING"),
        (f"{handler}.next_rendezvous", "SUCCEEDED"),
        (f"{handler}.set_closed", "SUCCEEDED"),
        (f"{handler}.next_rendezvous", "RUNNING"),
        (f"{handler}.next_rendezvous", "FAILED"),
        (f"{handler}.shutdown", "SUCCEEDED"),
    ]
    told = [line["metadata"] for line in lines]
    assert {each["run_id"] for each in told} == {"job"}
    assert [each["rank"] for each in told] == [None, None, 0, 0, None, None, None, None]
    assert "RendezvousClosedError" in told[6]["error_trace"]


def test_events_of_a_forked_child_arrive_too(tmp_path: Path) -> None:
    file = tmp_path / "events"
    program = f"""
import os
record(Event("parent", EventSource.AGENT), "jsonl:{file}")
flush_events()
if not os.fork():
    record(Event("child", EventSource.AGENT), "jsonl:{file}")
    flush_events()
    os._exit(0)
os.wait()
"""
    assert run(program).returncode == 0
    assert names_in(file) == ["parent", "child"]


def test_a_line_that_the_disk_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    """A file that may not grow takes what fits; then it may grow again."""
    file = tmp_path / "events"
    handler = make_event_handler(f"jsonl:{file}")
    assert handler is not None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
        with pytest.raises(OSError, match="File too large"):
            handler.handle(Event("cut", EventSource.AGENT, metadata={"long": "x" * 100}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, was)
    handler.handle(Event("whole", EventSource.AGENT))
    handler.close()
    cut, whole = file.read_text().splitlines()
    assert len(cut) == 50
    assert json.loads(whole)["name"] == "whole"
