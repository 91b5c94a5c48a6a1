"""What a person's terminal gets of Rallypoint's own lines, among what workers write."""

from __future__ import annotations

import json
import os
import pty
import signal
from pathlib import Path

from tests.harness.one_agent import agent, ended, eventually
from tests.harness.relays import (
    LIMIT_S,
    RAW,
    add,
    end_of,
    receive,
    relay_to,
    running,
    spawn,
)

from rallypoint.observe.printing import json_line
from rallypoint.process.logs.plan import Std


async def test_our_lines_are_escaped_and_the_workers_pass_as_they_are(tmp_path: Path) -> None:
    async with relay_to(tmp_path / "console") as relay:
        program = "import os; os.write(2, b'\\x1b[31mmine\\x1b[0m\\n')"
        await end_of(spawn(program, stderr=add(relay, Std.ERR, RAW)))
        await relay.drain(LIMIT_S)
        relay.say("rallypoint: a\x1b[2J\u202eb\nrallypoint: forged", "    c\udcff")
    ours = "rallypoint: a\\x1b[2J\\u202eb | rallypoint: forged\n    c\\xff\n"
    assert (tmp_path / "console").read_text() == "\x1b[31mmine\x1b[0m\n" + ours


async def test_a_long_json_line_is_one_line_of_json(tmp_path: Path) -> None:
    record = {"event": "verdict", "detail": ["\x1b" * 1000] * 50}
    async with relay_to(tmp_path / "console") as relay:
        relay.say(json_line(record))
    (line,) = (tmp_path / "console").read_text().splitlines()
    assert len(line) > 200_000
    assert json.loads(line) == record


async def test_a_status_line_is_escaped_and_still_drawn_in_place() -> None:
    master, terminal = pty.openpty()
    os.set_blocking(master, False)
    seen = bytearray()
    async with running(terminal, terminal) as relay:
        relay.status("waiting for \x1b]0;owned\x07")
        await receive(master, seen, lambda: b"owned\\x07\x1b[?7h" in seen)
    await receive(master, seen, lambda: seen.endswith(b"\r\x1b[2K"))
    os.close(terminal)
    os.close(master)
    assert seen == b"\x1b[?7lwaiting for \\x1b]0;owned\\x07\x1b[?7h\r\x1b[2K"


def test_what_a_worker_leaves_for_its_report_moves_no_cursor(tmp_path: Path) -> None:
    program = (
        "import sys; print('\\x1b]0;owned\\x07 \\u202e \\x85 x', file=sys.stderr); sys.exit(3)"
    )
    run = ended(agent(tmp_path, "--log-dir=a\x1b[2J", "--redirects=3", program=program), 1)
    assert [line for line in run.err.splitlines() if not line.isprintable()] == []
    assert r"a\x1b[2J" in run.err


WAITING = """
import os, sys, time
if os.environ["LOCAL_RANK"] == "3":
    try:
        print("ready", flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        raise ValueError("of its own") from None
print("ready", flush=True)
time.sleep(600)
"""


def test_ctrl_c_is_one_line_for_all_workers_and_whole_in_their_files(tmp_path: Path) -> None:
    options = ("--nproc-per-node=4", "--output=prefix", "--log-dir=logs", "--tee=3")
    with agent(tmp_path, *options, program=WAITING) as run:
        eventually(lambda: run.out.count("ready") == 4, "4 workers to be ready")
        run.send(signal.SIGINT)
        assert run.wait() == 130, run.err
    assert "rallypoint: 3 workers were interrupted (KeyboardInterrupt)" in run.said
    assert run.err.count("Traceback (most recent call last):") == 1
    assert "ValueError: of its own" in run.err
    files = [log.read_text() for log in (tmp_path / "logs").rglob("stderr.log")]
    assert sum("KeyboardInterrupt" in text for text in files) == 3
