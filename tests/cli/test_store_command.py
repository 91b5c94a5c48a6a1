"""`rallypoint store`: a stand-alone store, used by real torch clients."""

from __future__ import annotations

import re
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.harness.limits import patience
from tests.harness.prepared import processes
from tests.harness.programs import run_program
from torch.distributed import TCPStore

STORE = (sys.executable, "-m", "rallypoint", "store")
LIMIT_S = patience(60.0)


class StoreCommand:
    """A running command; its lines are read as they come."""

    def __init__(self, *options: str, host: str = "127.0.0.1") -> None:
        self.process = processes.start(
            [*STORE, "--host", host, "--port", "0", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,  # so that select sees what was not read yet
        )
        self.first_line = self.line("listens on")
        found = re.search(r"listens on \S+:(\d+) for", self.first_line)
        assert found, self.first_line
        self.port = int(found[1])

    def line(self, text: str) -> str:
        """Waits for a line with this text; those before it are passed over."""
        assert self.process.stderr is not None
        while True:
            assert select.select([self.process.stderr], [], [], LIMIT_S)[0], f"no {text!r}"
            line: str = self.process.stderr.readline().decode()
            assert line, f"ended without {text!r}"
            if text in line:
                return line

    def client(self) -> TCPStore:
        return TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=LIMIT_S))


@pytest.fixture
def start() -> Iterator[Callable[..., StoreCommand]]:
    started: list[StoreCommand] = []

    def start_one(*options: str, host: str = "127.0.0.1") -> StoreCommand:
        started.append(StoreCommand(*options, host=host))
        return started[-1]

    yield start_one
    for command in started:
        command.process.kill()
        command.process.communicate()


@pytest.mark.executed
def test_it_says_where_it_listens_and_serves_torch(start: Callable[..., StoreCommand]) -> None:
    command = start()
    assert "processes of this user on this machine" in command.first_line
    assert f"TCPStore('127.0.0.1', {command.port}, is_master=False)" in command.first_line
    client = command.client()
    client.set("k", "v")
    assert client.get("k") == b"v"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_its_clients(
    start: Callable[..., StoreCommand], number: signal.Signals, code: int
) -> None:
    command = start()
    client = command.client()
    command.process.send_signal(number)
    assert number.name in command.line("got")
    assert command.process.wait(LIMIT_S) == code
    with pytest.raises(RuntimeError):
        client.add("n", 1)


def test_stats_say_what_the_store_holds(start: Callable[..., StoreCommand]) -> None:
    command = start("--stats", "0.2")
    client = command.client()
    client.set("k", "12345")
    line = command.line(" 1 keys, ")
    assert re.search(r"1 connections, 1 keys, \d+ bytes, 0 waiting, \d+ operations/s", line), line


def test_memory_and_connections_are_limited_and_the_line_says_so(
    start: Callable[..., StoreCommand],
) -> None:
    command = start("--max-memory", "1K", "--max-connections", "2")
    client, witness = command.client(), command.client()
    witness.set("w", "1")
    client.set("big", "x" * 2000)
    assert "limit of 1024 (--max-memory)" in command.line("127.0.0.1:")
    assert witness.get("w") == b"1"
    again = command.client()
    with pytest.raises(RuntimeError):
        TCPStore("127.0.0.1", command.port, is_master=False, timeout=timedelta(milliseconds=10))
    assert "2 connections are open" in command.line("--max-connections")
    assert again.get("w") == b"1"


def test_on_all_addresses_it_says_the_machines_name(start: Callable[..., StoreCommand]) -> None:
    command = start("--insecure", host="0.0.0.0")
    assert f"TCPStore({socket.gethostname()!r}, {command.port}" in command.first_line


def test_everybody_may_use_it_if_somebody_said_so(start: Callable[..., StoreCommand]) -> None:
    command = start("--insecure", host="0.0.0.0")
    assert "everybody who reaches the port" in command.first_line
    assert command.client().add("n", 1) == 1
    allowed = start("--allow", "10.0.0.0/8,192.0.2.1", host="0.0.0.0")
    assert "10.0.0.0/8, 192.0.2.1/32" in allowed.first_line
    assert allowed.client().add("n", 1) == 1


def refused(words: Sequence[str], files: int | None = None) -> str:
    """The one line with which a command line is refused."""
    how: dict[str, Any] = {}
    if files is not None:
        how["preexec_fn"] = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
    done = processes.run(
        [*STORE, *words],
        capture_output=True,
        timeout=LIMIT_S,
        **how,
    )
    assert done.returncode == 2, done
    [line] = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "--host"),
        ("--host 0.0.0.0", "--allow 10.0.0.0/8"),
        ("--host 0.0.0.0 --allow 10.0.0.0/33", "--allow 10.0.0.0/33: needs networks"),
        ("--host ::1 --allow 10.0.0.1 --insecure", "give one of the two"),
        ("--host 192.0.2.1 --insecure", "192.0.2.1 is not an address of this machine"),
        ("--host ::1 --port 65536", "0..65535"),
        ("--host ::1 --max-memory much", "--max-memory much: needs a number of bytes"),
        ("--host ::1 --max-connections 0", "needs 1 or more"),
        ("--host ::1 --stats 0", "more than 0"),
    ],
)
def test_a_bad_command_line_is_one_line(words: str, said: str) -> None:
    assert said in refused(words.split())


def test_too_few_open_files_are_said_at_the_start_with_the_number_that_is_needed() -> None:
    line = refused(["--host", "127.0.0.1", "--max-connections", "1000"], files=200)
    assert "--max-connections 1000: needs 1064 open files" in line
    assert "may have 200" in line
    assert "ulimit -Hn" in line


def test_help_names_it() -> None:
    whole = run_program([sys.executable, "-m", "rallypoint", "--help"], check=True)
    assert re.search(r"^  store +host", whole.stdout, re.MULTILINE)
    own = subprocess.run([*STORE, "--help"], capture_output=True, text=True, check=True)
    for word in ("--allow CIDR", "--max-memory SIZE", "--stats [SECONDS]", "143"):
        assert word in own.stdout
