"""How fast a store is, and what it weighs, beside torch's own.

benchmarks/store.py [--quick] [-n TIMES]

Prints Markdown. Servers are processes: torch's, and ours on asyncio and, where it is installed, on
uvloop. They are measured in turn, by the same clients.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from measure import is_quick, prepare
from store_worker import PING, client, connect
from tables import interleaved, markdown, spread

HERE = Path(__file__).parent
OPERATIONS = ("set", "get", "add", "compare_set")
SMALL, LARGE = 64, 64 << 10
TARGETS = {"uvloop": 0.9, "asyncio": 0.75}
LARGE_TARGET = 1.0
GET_TARGET = 1.7
MULTI_SET_TARGET = 15.0
RESTING_MB = 60.0
HOLDERS, CLIENTS = 4, 8
EACH = {(name, SMALL): 4000 for name in OPERATIONS} | {(name, LARGE): 1000 for name in OPERATIONS}
EACH["set", SMALL] = 20_000  # a set is not waited for, and so ten times as fast
MULTI_SETS = 2
"""So often is multi_set measured, at most: torch's takes up to a minute and a half."""
_runs = count()


class Clients:
    """Processes that do the same thing at the same time."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes

    def run(self, used: int, *, notify: Any = None, **job: Any) -> tuple[float, float]:
        """When the first began and the last ended; `notify` is called when all are waiting."""
        chosen = self._processes[:used]
        for number, process in enumerate(chosen):
            tell(process, json.dumps(job | {"own": str(number)}))
        for process in chosen:
            hear(process)
        for process in chosen:
            tell(process, "go")
        if notify is not None:
            notify()
        moments = [json.loads(hear(process)) for process in chosen]
        return min(began for began, _ in moments), max(ended for _, ended in moments)


def tell(process: subprocess.Popen[str], line: str) -> None:
    """A line to a client."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    """A line from a client or a server."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} ended with code {process.wait()}")
    return line


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A program of this folder."""
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    command = [python, str(HERE / words[0]), *words[1:]]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def rate(clients: Clients, used: int, times: int, **job: Any) -> float:
    """Thousand operations per second, of all clients together."""
    began, ended = clients.run(used, count=times, **job)
    return used * times / (ended - began) / 1e3


def duration(clients: Clients, **job: Any) -> float:
    """Seconds of one request."""
    began, ended = clients.run(1, client="torch", **job)
    return ended - began


def wake(clients: Clients, waiting: int, port: int) -> float:
    """Seconds from a set to the last of the woken."""
    key = f"wake/{next(_runs)}"
    began, ended = clients.run(
        HOLDERS,
        notify=partial(client("ours", port).set, key, b""),
        name="wake",
        key=key,
        port=port,
        count=waiting // HOLDERS,
    )
    return ended - began


def resting(process: subprocess.Popen[str], port: int, connections: int) -> float:
    """RSS of a server, in megabytes (10^6 bytes), while so many are connected."""
    with ExitStack() as open_:
        opened = [open_.enter_context(connect(port, PING)) for _ in range(connections)]
        for connection in opened:
            connection.recv(4)
        status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024 / 1e6


def judged(
    ours: tuple[float, ...], theirs: tuple[float, ...], target: float | None, up: bool
) -> str:
    """The ratio of the medians, better when larger, and whether it is large enough."""
    ratio = median(ours) / median(theirs) if up else median(theirs) / median(ours)
    if target is None:
        return f"{ratio:.2f} x"
    return f"{ratio:.2f} x: {'met' if ratio >= target else 'missed'} ({target:g})"


def row(
    name: str, found: dict[str, tuple[float, ...]], wanted: Mapping[str, float | None], up: bool
) -> list[str]:
    """Torch's server, then each of ours with its ratio."""
    cells = [name, spread(found["torch"])]
    for server, target in wanted.items():
        cells += [spread(found[server]), judged(found[server], found["torch"], target, up)]
    return [*cells, str(len(found["torch"]))]


def rate_rows(times: int, clients: Clients, ports: dict[str, int]) -> list[list[str]]:
    """Torch's client, on every server."""
    return [
        rate_row(times, clients, ports, name, size, used)
        for size in (SMALL, LARGE)
        for used in ((1,) if is_quick() else (1, CLIENTS))
        for name in OPERATIONS
        if (name, size) != ("add", LARGE)  # a number is never so long
    ]


def rate_row(
    times: int, clients: Clients, ports: dict[str, int], name: str, size: int, used: int
) -> list[str]:
    """One operation."""
    each = 40 if is_quick() else EACH[name, size] // (1 if used == 1 else 4)
    job = {"client": "torch", "name": name, "size": size}
    run = partial(rate, clients, used, each, **job)
    found = interleaved(times, {s: partial(run, port=port) for s, port in ports.items()})
    targets = {s: TARGETS[s] if size == SMALL else LARGE_TARGET for s in ours(ports)}
    return row(f"{name} {size} B, clients: {used}", found, targets, True)


def ours(ports: dict[str, int]) -> list[str]:
    """Our servers."""
    return [server for server in ports if server != "torch"]


def client_rows(times: int, clients: Clients, ports: dict[str, int]) -> list[list[str]]:
    """Both clients on the same server, ours."""
    rows, server = [], ours(ports)[-1]
    each = 40 if is_quick() else 4000
    for name in OPERATIONS:
        job = {"port": ports[server], "name": name, "size": SMALL}
        found = interleaved(
            times, {c: partial(rate, clients, 1, each, client=c, **job) for c in ("torch", "ours")}
        )
        # Only get has a target: one round trip in place of two.
        target = GET_TARGET if name == "get" else None
        rows.append(row(f"{name} {SMALL} B on {server}", found, {"ours": target}, True))
    return rows


def crowd_rows(times: int, clients: Clients, ports: dict[str, int]) -> list[list[str]]:
    """What many keys, and many who wait, take."""
    gets, sets, waiting = (500, 2000, 20) if is_quick() else (10_000, 120_000, 1000)
    rows = []
    for name, size, target in (("multi_get", gets, None), ("multi_set", sets, MULTI_SET_TARGET)):
        job = {"name": name, "size": 8, "count": size}
        variants = {s: partial(duration, clients, port=p, **job) for s, p in ports.items()}
        found = interleaved(times if name == "multi_get" else min(times, MULTI_SETS), variants)
        rows.append(row(f"{name} of {size} keys", found, dict.fromkeys(ours(ports), target), False))
    found = interleaved(times, {s: partial(wake, clients, waiting, p) for s, p in ports.items()})
    rows.append(row(f"wake {waiting} waiters", found, dict.fromkeys(ours(ports)), False))
    return rows


def memory_rows(
    processes: dict[str, subprocess.Popen[str]], ports: dict[str, int]
) -> list[list[str]]:
    """Fresh servers, since one keeps what it has once had."""
    rows = []
    for server in processes:
        # Torch's may take 100 ms for each that connects: a number to compare is not worth minutes.
        connections = 50 if is_quick() else 100 if server == "torch" else 4000
        found = [resting(processes[server], ports[server], connections)]
        told = "-" if server == "torch" else "met" if max(found) <= RESTING_MB else "missed"
        rows.append([server, str(connections), spread(found, digits=1), f"{told} ({RESTING_MB:g})"])
    return rows


def main() -> int:
    """Measure everything and print four tables."""
    times = prepare("Store", 5)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    servers = ["torch", "asyncio"] + ["uvloop"] * (importlib.util.find_spec("uvloop") is not None)
    with ExitStack() as open_:

        def start() -> tuple[dict[str, subprocess.Popen[str]], dict[str, int]]:
            processes = {s: open_.enter_context(running("store_server.py", s)) for s in servers}
            return processes, {s: int(hear(process)) for s, process in processes.items()}

        head = ["", "torch", *(cell for s in servers[1:] for cell in (s, "to torch")), "n"]
        print(
            markdown(
                "Idle connections: RSS (MB)",
                ("server", "connections", "RSS", "target"),
                memory_rows(*start()),
            ),
            flush=True,
        )
        _, ports = start()
        wanted = HOLDERS if is_quick() else CLIENTS
        workers = [open_.enter_context(running("store_worker.py")) for _ in range(wanted)]
        clients = Clients(workers)
        print(
            markdown("Thousand operations per second", head, rate_rows(times, clients, ports)),
            flush=True,
        )
        title = "Thousand operations per second, by client"
        beside = ["", "torch's client", "ours", "to torch's", "n"]
        print(markdown(title, beside, client_rows(times, clients, ports)), flush=True)
        print(markdown("Seconds", head, crowd_rows(times, clients, ports)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
