"""The relay with real pipes and processes: nothing dropped, nothing torn, nothing left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.harness.limits import until
from tests.harness.proc import children_of, is_alive
from tests.harness.programs import run_program
from tests.harness.relays import (
    LIMIT_S,
    RAW,
    add,
    consoles,
    end_of,
    file_console,
    open_fds,
    receive,
    relay_to,
    running,
    spawn,
    tail_of,
)

from rallypoint.config import OutputMode
from rallypoint.errors import UsageError
from rallypoint.process.logs.log_dir import LogDir, error_file
from rallypoint.process.logs.plan import ConsoleRoute, LinePrefix, Std, ToRelay, parse_std_map
from rallypoint.process.logs.specs import DefaultLogsSpecs
from rallypoint.process.logs.worker_output import OutputSettings, WorkerOutputs
from rallypoint.process.relay.client import Relay
from rallypoint.process.relay.streams import JOIN_S

LINES = ToRelay(ConsoleRoute.PREFIX, "", keep_tail=True)


COPY = """
import os, sys
data = open(sys.argv[1], "rb").read()
while data:
    data = data[os.write(2, data):]
"""


async def test_raw_bytes_arrive_unchanged_and_the_tail_is_their_end(tmp_path: Path) -> None:
    data = os.urandom(5_000_000).replace(b"\r", b"") + b"\nlast words\n"
    (tmp_path / "in").write_bytes(data)
    async with relay_to(tmp_path / "console") as relay:
        await end_of(spawn(COPY, str(tmp_path / "in"), stderr=add(relay, Std.ERR, RAW)))
        tail = await tail_of(relay, 1, 0, timeout_s=LIMIT_S)
    assert (tmp_path / "console").read_bytes() == data
    assert data.endswith(tail)
    assert tail.endswith(b"\nlast words\n")


SIXTEENTH = """
import os, sys
me = sys.argv[1]
for n in range(500):
    body = "long " * 2000 if n % 100 == 7 else "\\N{ROCKET}\\N{SNOWMAN} "
    data = f"{me} {n} {body}end\\n".encode()
    while data:  # in pieces that cut lines and characters
        data = data[os.write(1 + n % 2, data[:4099]):]
os.write(1, f"{me} out open".encode())
os.write(2, f"{me} err open".encode())
"""


async def test_lines_of_sixteen_writers_are_never_torn(tmp_path: Path) -> None:
    async with relay_to(tmp_path / "console") as relay:
        workers = []
        for rank in range(16):
            mark = f"[w {rank}] ".encode()
            out = add(relay, Std.OUT, LINES, rank=rank, prefix=mark)
            err = add(relay, Std.ERR, LINES, rank=rank, prefix=mark)
            workers.append(spawn(SIXTEENTH, str(rank), stdout=out, stderr=err))
            relay.say(f"rallypoint: worker {rank} started")
            relay.status("no terminal, so never seen")
        await end_of(*workers)
        tail = await tail_of(relay, 1, 3, timeout_s=LIMIT_S)
        assert tail.endswith(b"\n3 err open")
    lines = (tmp_path / "console").read_text().splitlines()
    assert len(lines) == 16 * 503
    seen: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("rallypoint: worker "):
            continue
        prefix, rest = line.split("] ", 1)
        me, n = rest.split(" ")[:2]
        assert prefix == f"[w {me}"
        assert rest.endswith("end") or rest in (f"{me} out open", f"{me} err open")
        seen.setdefault(me, []).append(n)
    assert len(seen) == 16
    for order in seen.values():
        assert sorted(order) == sorted([*map(str, range(500)), "out", "err"])
        for parity in (0, 1):  # within one stream the order is kept
            stream = [int(n) for n in order if n.isdigit() and int(n) % 2 == parity]
            assert stream == sorted(stream)


def takes_nothing(writer: int) -> bool:
    """Whether a write to this pipe would wait."""
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    return not poll.poll(0)


@contextlib.contextmanager
def pipe_console() -> Iterator[tuple[int, int]]:
    """A console that is read only when the test wants to: reading end, writing end."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def test_a_slow_console_slows_the_worker_and_drops_nothing(tmp_path: Path) -> None:
    data = b"".join(b"line %d %s\n" % (n, b"x" * 100) for n in range(60_000))
    events = [b"rallypoint: event %d\n" % n for n in range(2000)]
    (tmp_path / "in").write_bytes(data)
    received = bytearray()

    async def main(reader: int, console: int) -> None:
        async with running(console, console) as relay:
            worker = spawn(COPY, str(tmp_path / "in"), stderr=add(relay, Std.ERR, LINES))
            await until(lambda: takes_nothing(console))
            # The console takes nothing; the relay answers all the same, and the agent can talk.
            other = "import os; os.write(2, b'last words\\n')"
            await end_of(spawn(other, stderr=add(relay, Std.ERR, LINES, rank=1)))
            assert await tail_of(relay, 1, 1, timeout_s=LIMIT_S) == b"last words\n"
            for event in events:
                relay.say(event.decode())
                relay.status("no terminal")
            assert not await relay.drain(0.1)
            assert worker.poll() is None, "nothing held the worker back"
            drained = asyncio.create_task(relay.drain())
            expected = len(data) + len(b"".join(events)) + len(b"last words\n")
            await receive(reader, received, lambda: len(received) >= expected)
            await end_of(worker)
            assert await drained

    with pipe_console() as (reader, console):
        asyncio.run(main(reader, console))
    lines = bytes(received).splitlines(keepends=True)
    assert [line for line in lines if line.startswith(b"rallypoint: ")] == events
    assert lines.count(b"last words\n") == 1
    assert b"".join([line for line in lines if line.startswith(b"line ")]) == data


def test_whoever_waits_for_a_slow_console_has_a_turn(tmp_path: Path) -> None:
    program = "import os, sys\nwhile True: os.write(1, sys.argv[1].encode() * 65535 + b'\\n')"
    received = bytearray()

    async def main(reader: int, console: int) -> None:
        async with running(console, console) as relay:
            streams = [add(relay, Std.OUT, LINES, rank=rank) for rank in range(12)]
            workers = [spawn(program, chr(65 + n), stdout=fd) for n, fd in enumerate(streams)]
            await until(lambda: takes_nothing(console))
            # Much more than pipes and backlog hold.
            await receive(reader, received, lambda: len(received) > 16_000_000)
            for worker in workers:
                worker.kill()
                worker.wait()
            draining = asyncio.create_task(relay.drain())
            await receive(reader, bytearray(), draining.done)

    with pipe_console() as (reader, console):
        asyncio.run(main(reader, console))
    late = received[8_000_000:]
    shares = {letter: late.count(bytes([letter])) for letter in range(65, 65 + 12)}
    assert min(shares.values()) > 200_000, shares


async def test_a_line_without_end_does_not_grow_the_relay() -> None:
    program = "import os\nfor _ in range(3200): os.write(1, b'x' * 65536)"  # 200 MB
    async with relay_to(Path(os.devnull)) as relay:
        route = ToRelay(ConsoleRoute.PREFIX, "", keep_tail=False)
        worker = spawn(program, stdout=add(relay, Std.OUT, route, prefix=b"> "))
        before = resident_bytes(relay.process.pid)
        most = 0
        while worker.poll() is None:
            most = max(most, resident_bytes(relay.process.pid))
            await asyncio.sleep(0.01)
        assert worker.returncode == 0
        assert most - before < 20_000_000


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_grandchild_that_holds_the_pipe_delays_neither_tail_nor_end(tmp_path: Path) -> None:
    hold, release = os.pipe()
    async with relay_to(tmp_path / "console") as relay:
        writer = add(relay, Std.ERR, LINES, prefix=b"[r 0] ")
        worker = subprocess.Popen(  # noqa: ASYNC220
            ["/bin/sh", "-c", "exec 4<&0; cat <&4 & printf 'Traceback\\nValueError: 7' >&2"],
            stdin=hold,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        await end_of(worker)
        assert await tail_of(relay, 1, 0, timeout_s=LIMIT_S) == b"Traceback\nValueError: 7"
        assert await relay.drain(LIMIT_S)
        relay.say("rallypoint: done")
    for fd in (hold, release):
        os.close(fd)
    text = (tmp_path / "console").read_text()
    assert text == "[r 0] Traceback\nrallypoint: done\n[r 0] ValueError: 7\n"


async def test_a_full_disk_is_reported_once_and_the_console_goes_on(tmp_path: Path) -> None:
    (tmp_path / "full.log").symlink_to("/dev/full")
    (tmp_path / "gone").mkdir()
    failures: list[tuple[str, int]] = []
    async with relay_to(tmp_path / "console", lambda *failure: failures.append(failure)) as relay:
        full = ToRelay(ConsoleRoute.TEE, str(tmp_path / "full.log"), keep_tail=True)
        absent = ToRelay(ConsoleRoute.TEE, str(tmp_path / "gone/x/err.log"), keep_tail=True)
        for n in range(2):
            for rank, route in enumerate((full, absent)):
                program = f"import os; os.write(2, b'hello {n}'); os.write(2, b' you')"
                prefix = f"[default{rank}]:".encode()
                await end_of(spawn(program, stderr=add(relay, Std.ERR, route, prefix=prefix)))
                await relay.drain(LIMIT_S)
    assert (tmp_path / "console").read_text().splitlines() == [
        "[default0]:hello 0 you",
        "[default1]:hello 0 you",
        "[default0]:hello 1 you",
        "[default1]:hello 1 you",
    ]
    assert failures == [
        (str(tmp_path / "full.log"), errno.ENOSPC),
        (str(tmp_path / "gone/x/err.log"), errno.ENOENT),
    ]


async def test_a_full_console_and_a_broken_one_are_reported_once(tmp_path: Path) -> None:
    failures: list[tuple[str, int]] = []
    log = tmp_path / "out.log"
    reader, out = os.pipe()
    os.close(reader)
    with file_console(Path("/dev/full")) as err:
        async with running(out, err, lambda *failure: failures.append(failure)) as relay:
            (tmp_path / "in").write_bytes(b"x" * 1_000_000)
            route = ToRelay(ConsoleRoute.RAW, str(log), keep_tail=True)
            out_fd = add(relay, Std.OUT, route)
            err_fd = add(relay, Std.ERR, RAW)
            program = COPY + "os.write(1, open(sys.argv[1], 'rb').read()[:300_000])"
            # A reader that went away, as `| head` does, kills no worker.
            await end_of(spawn(program, str(tmp_path / "in"), stdout=out_fd, stderr=err_fd))
            await relay.drain(LIMIT_S)
    os.close(out)
    assert sorted(failures) == [("stderr", errno.ENOSPC), ("stdout", errno.EPIPE)]
    assert log.stat().st_size == 300_000


IN_TWO_PARTS = f"""
import os, sys, time
name, held_up = sys.argv[1], []
for n in range(2000):
    begun = time.monotonic()
    os.write(1, f"{{name}} {{n}}".encode())
    os.write(1, b" as one\\n")
    if time.monotonic() - begun >= {JOIN_S}:
        held_up.append(n)
open(name, "w").write(" ".join(map(str, held_up)))
"""


async def test_a_line_that_is_written_in_two_parts_is_not_mixed_with_those_of_others(
    tmp_path: Path,
) -> None:
    """A writer that the system held up between the parts has noted which lines these are."""
    async with relay_to(tmp_path / "console") as relay:
        streams = [add(relay, Std.OUT, RAW, rank=rank) for rank in range(3)]
        names = [str(tmp_path / f"held-up-{rank}") for rank in range(3)]
        pairs = zip(names, streams, strict=True)
        await end_of(*(spawn(IN_TWO_PARTS, name, stdout=stream) for name, stream in pairs))
    text = (tmp_path / "console").read_text()
    for name in names:
        held_up = Path(name).read_text().split()
        assert len(held_up) < 1000
        lines = {f"{name} {n} as one" for n in range(2000) if str(n) not in held_up}
        assert lines <= {name + rest for rest in re.findall(f"{re.escape(name)}(.*)", text)}


async def test_what_is_no_line_yet_is_shown_though_more_of_it_comes_at_once(tmp_path: Path) -> None:
    program = (
        "import os, time\nwhile not os.path.exists('seen'): os.write(1, b'.'); time.sleep(0.01)"
    )
    async with relay_to(tmp_path / "console") as relay:
        worker = spawn(
            f"import os; os.chdir({str(tmp_path)!r})\n{program}",
            stdout=add(relay, Std.OUT, RAW),
        )
        await until(lambda: (tmp_path / "console").read_bytes().startswith(b"..."))
        (tmp_path / "seen").touch()
        await end_of(worker)
    assert set((tmp_path / "console").read_text()) == {"."}


async def test_a_line_of_the_agent_starts_where_a_line_starts(tmp_path: Path) -> None:
    async with relay_to(tmp_path / "console") as relay:
        await end_of(spawn("import os; os.write(2, b'50%')", stderr=add(relay, Std.ERR, RAW)))
        await relay.drain(LIMIT_S)
        relay.say("rallypoint: one")
        relay.say("rallypoint: two\n")
    assert (tmp_path / "console").read_text() == "50%\nrallypoint: one\nrallypoint: two\n"


async def test_signals_to_everybody_do_not_end_the_output(tmp_path: Path) -> None:
    async with relay_to(tmp_path / "console") as relay:
        writer = add(relay, Std.ERR, RAW)
        # Also in the first moment of its life.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(relay.process.pid, number)
        assert await relay.drain(LIMIT_S)
        assert os.getsid(relay.process.pid) == relay.process.pid
        await end_of(spawn("import os; os.write(2, b'last words')", stderr=writer))
    assert (tmp_path / "console").read_text() == "last words"


AGENT = """
import os, subprocess, sys, time
from rallypoint.process.relay.client import Relay
from rallypoint.process.relay.streams import JOIN_S
from rallypoint.process.logs.plan import ConsoleRoute, Std, ToRelay
relay = Relay.start()
route = ToRelay(ConsoleRoute.RAW, "", keep_tail=True)
fd = relay.add((1, 0), Std.ERR, route)
program = "import os; os.write(2, b'last words')"
subprocess.run([sys.executable, "-S", "-c", program], stderr=fd)
os.write(1, b"%d\\n" % relay.process.pid)
time.sleep(1000)
"""


@pytest.mark.parametrize("stranger", ["", "os.fork() or (os.closerange(0, 3), time.sleep(60))"])
def test_the_relay_goes_with_a_killed_agent_and_its_last_words_are_out(stranger: str) -> None:
    """Also when a process that the agent's program has forked holds all its descriptors."""
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT.replace("time.sleep(1000)", f"{stranger}\ntime.sleep(1000)")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert agent.stdout is not None
    relay_pid = int(agent.stdout.readline())
    if stranger:
        asyncio.run(until(lambda: len(children_of(agent.pid)) == 2))
    agent.kill()
    # Standard error ends when its last holder, the relay, has gone.
    _, err = agent.communicate(timeout=LIMIT_S)
    assert err == b"last words"
    asyncio.run(until(lambda: not is_alive(relay_pid)))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(agent.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def lost_relay(path: Path) -> AsyncIterator[Relay]:
    """A relay that was killed, while this file is the console of the test itself."""
    with file_console(path) as console, consoles(console, console):
        relay = Relay.start()
        relay.process.kill()
        assert not await relay.drain(LIMIT_S)
        yield relay
        await relay.stop()


async def test_a_lost_relay_costs_decoration_not_output(tmp_path: Path) -> None:
    before = open_fds()
    async with lost_relay(tmp_path / "console") as relay:
        assert await tail_of(relay, 1, 0) == b""
        writer = add(relay, Std.OUT, LINES, prefix=b"[never] ")
        await end_of(spawn("import os; os.write(1, b'hello\\n')", stdout=writer))
        relay.status("nowhere to show it")
        await relay.stop()
    assert (tmp_path / "console").read_text() == "hello\n"
    assert open_fds() - before == set()


async def test_the_first_output_of_each_round_is_told_once(tmp_path: Path) -> None:
    heard: list[int] = []
    async with relay_to(tmp_path / "console", on_first_output=heard.append) as relay:
        for round_number in (3, 4):
            streams = [relay.add((round_number, rank), Std.OUT, LINES) for rank in (0, 1)]
            await relay.drain(LIMIT_S)
            assert round_number not in heard  # nothing was said yet
            for stream in streams:
                await end_of(spawn("print('hello')", stdout=stream))
            await until(lambda n=round_number: n in heard)  # type: ignore[misc]
    assert heard == [3, 4]


async def test_a_question_that_is_withdrawn_as_the_answer_comes_stays_withdrawn(
    tmp_path: Path,
) -> None:
    """Else its task would go on, and wait for something that nobody knows of any more."""
    async with relay_to(tmp_path / "console") as relay:
        asking = asyncio.create_task(relay.output(0, (), newest=0, unfinished=False))
        await asyncio.sleep(0)
        (answer,) = relay._asks.values()
        assert select.select([relay._control], [], [], LIMIT_S)[0]
        relay._receive()
        asking.cancel()
        await asyncio.wait((asking,))
        assert answer.done()
        assert asking.cancelled()


async def test_a_lost_relay_costs_no_file_and_shows_nothing_hidden(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path / "logs"), tee={0: Std.OUT}, local_ranks_filter={0})
    async with lost_relay(tmp_path / "console") as relay:
        opened = WorkerOutputs(SETTINGS, specs, relay).open_round(1, environs(1, 2))
        for rank, output in enumerate(opened):
            program = f"import os; os.write(1, b'out {rank}'); os.write(2, b'err {rank}')"
            await end_of(spawn(program, stdout=output.stdout_fd, stderr=output.stderr_fd))
    assert (tmp_path / "console").read_text() == "err 0"
    assert [log.read_text() for log in (tmp_path / "logs").rglob("*.log")] == ["out 0"]


async def test_status_line_stays_below_the_lines_and_goes_in_the_end() -> None:
    master, terminal = pty.openpty()
    os.set_blocking(master, False)
    seen = bytearray()
    async with running(terminal, terminal) as relay:
        writer = add(relay, Std.OUT, LINES, prefix=b"[w 0] ")
        relay.status("round 1 · waiting")
        await receive(master, seen, lambda: b"waiting\x1b[?7h" in seen)
        program = "import os; os.write(1, b'one\\ntwo\\n')"
        await end_of(spawn(program, stdout=writer))
        await relay.drain(LIMIT_S)
        await receive(master, seen, lambda: seen.count(b"waiting\x1b[?7h") == 2)
        relay.status("round 1 · running")
        await receive(master, seen, lambda: b"running\x1b[?7h" in seen)
        relay.say("rallypoint: done")
        await receive(master, seen, lambda: seen.count(b"running\x1b[?7h") == 2)
    await receive(master, seen, lambda: seen.endswith(b"\r\x1b[2K"))
    os.close(terminal)
    os.close(master)
    text = seen.decode()
    assert screen(text) == ["[w 0] one", "[w 0] two", "rallypoint: done", ""]
    # The first lines came while a status was shown: it was taken away before them.
    assert "waiting\x1b[?7h\r\x1b[2K[w 0] one" in text


def screen(text: str) -> list[str]:
    """What a terminal shows after these bytes: enough of one for a status line."""
    rows = [""]
    for part in re.findall(r"\x1b\[\??[0-9]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if part == "\n":
            rows.append("")
        elif part == "\x1b[2K":
            rows[-1] = ""
        elif not part.startswith("\x1b") and part != "\r":
            rows[-1] += part
    return rows


SETTINGS = OutputSettings(OutputMode.INHERIT, LinePrefix("default"), inherits=Std.NONE)


def environs(round_number: int, workers: int) -> dict[int, dict[str, str]]:
    return {
        rank: {"RANK": str(rank), "RALLYPOINT_ROUND": str(round_number)} for rank in range(workers)
    }


async def test_P5_redirects_and_tee_end_to_end_and_no_round_erases_another(tmp_path: Path) -> None:
    program = "import os,sys; os.write(1, b'hello'); os.write(2, sys.argv[1].encode() + b' oops')"
    specs = DefaultLogsSpecs(
        str(tmp_path / "logs"), redirects=parse_std_map("0:3", 3), tee=parse_std_map("2:3", 3)
    )
    log_dir = specs.open("../my job")
    async with relay_to(tmp_path / "console") as relay:
        outputs = WorkerOutputs(SETTINGS, specs, relay)
        for round_number in (1, 2):
            opened = outputs.open_round(round_number, environs(round_number, 3))
            for rank, output in enumerate(opened):
                words, out, err = f"r{round_number}w{rank}", output.stdout_fd, output.stderr_fd
                await end_of(spawn(program, words, stdout=out, stderr=err))
                end = (await outputs.last_words(round_number, rank)).stderr[-1]
                assert end.data.decode() == f"{words} oops"
                assert (output.log_file == "") == (rank == 1)
                await relay.drain(LIMIT_S)
    shown = (tmp_path / "console").read_text()
    assert shown.count("hello") == 4
    assert shown.count("[default2]:hello\n") == 2
    assert shown.count("[default2]:r1w2 oops\n") == 1
    assert "w0" not in shown
    assert os.path.basename(log_dir.root).startswith("_my_job_")
    root = Path(log_dir.root)
    for round_number in (1, 2):
        for rank in (0, 2):
            worker = root / f"attempt_{round_number}" / str(rank)
            assert (worker / "stdout.log").read_text() == "hello"
            assert (worker / "stderr.log").read_text() == f"r{round_number}w{rank} oops"
    specs.close(keep=False)  # it was asked for: never removed
    assert root.exists()


def test_a_temporary_log_dir_is_private_and_removed(tmp_path: Path) -> None:
    log_dir = LogDir.open(None, "job", temp_dir=str(tmp_path))
    error = error_file(log_dir.begin(1, [0]), 0)
    Path(error).write_text("{}")
    assert os.stat(log_dir.root).st_mode & 0o777 == 0o700
    assert error.endswith("/attempt_1/0/error.json")
    log_dir.close(keep=True)
    assert os.path.exists(error)
    log_dir.close(keep=False)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    """As Python's tempfile: another one is taken."""
    log_dir = LogDir.open(None, "job", temp_dir=str(tmp_path / "missing"))
    try:
        assert list(tmp_path.iterdir()) == []
        assert os.path.isdir(log_dir.root)
        assert os.path.dirname(log_dir.root) in ("/tmp", "/var/tmp")
    finally:
        log_dir.close(keep=False)


def test_the_null_device_as_log_dir_means_no_files() -> None:
    specs = DefaultLogsSpecs("/dev/null", redirects=Std.ALL)
    output = WorkerOutputs(SETTINGS, specs, None).open_round(1, environs(1, 1))[0]
    assert (output.error_file, output.log_file) == ("", "")
    output.close()
    specs.close(keep=False)


def test_a_log_dir_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as caught:
        LogDir.open(str(tmp_path / "file" / "logs"), "job")
    assert str(caught.value) == (
        f"can't write logs under {tmp_path}/file/logs: Not a directory: choose another --log-dir"
    )


FULL = """
import sys
from rallypoint.errors import LogStorageError
from rallypoint.process.logs.log_dir import LogDir, error_file
from rallypoint.process.logs.specs import DefaultLogsSpecs
try:
    LogDir.open(sys.argv[1], "job")
except LogStorageError as error:
    print(error)
"""


def test_a_full_log_dir_is_noticed_before_any_worker_starts(tmp_path: Path) -> None:
    command = (
        'mount -t tmpfs -o size=4k none "$1" || exit 77; '
        'echo full > "$1/file"; "$2" -c "$3" "$1"; ls "$1"'
    )
    arguments = [str(tmp_path), sys.executable, FULL]
    done = run_program(["unshare", "-rm", "sh", "-c", command, "sh", *arguments])
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mount namespace may be made here")
    line, *files = done.stdout.splitlines()
    assert line == (
        f"can't write logs under {tmp_path}: No space left on device: "
        "free space there or choose another --log-dir"
    )
    assert files == ["file"]
