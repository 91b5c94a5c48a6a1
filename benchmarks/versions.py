"""Whether this version is as fast as another one: both measured in turn, on the same machine.

benchmarks/versions.py OTHER_CHECKOUT [--only TEXT] [--quick] [-n TIMES]

Prints Markdown. Each turn measures the other version, this one, and the other one again: how far
the other one is from itself is what the machine alone makes of a figure. A ratio over 1 is slower,
or larger. Both run in this interpreter, with their `src` first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

from launch import agents_end, cpu_at_rest, weigh
from measure import first_line, is_quick, prepare, rallypoint
from output import Run
from recovery import agent_killed, worker_killed
from restart import worker_killed as forked_again
from store import Clients, rate, running
from tables import markdown, markdown_row, spread

Measure = Callable[[], float]
LARGEST = 1.03
"""So large may the median of the ratios be, or as far from 1 as three of four ratios of the other
version to itself."""
HERE = Path(__file__).resolve().parent
SRC = HERE.parent / "src"
HEAD = ("", "other", "this", "this / other", "other / other", "", "n")


def main() -> int:
    """Measure everything and print one table, each line when it is measured."""
    sys.argv, other, only = words(sys.argv)
    times = prepare("Two versions", 10)
    found = {name: measure for name, measure in figures().items() if only in name}
    print(markdown("This version beside the other one", HEAD, []).rstrip(), flush=True)
    for name, measure in found.items():
        print(markdown_row(row(name, measure, other, times)), flush=True)
    if only in "store":
        for cells in store_rows(other, times):
            print(markdown_row(cells), flush=True)
    print(flush=True)
    return 0


def words(given: list[str]) -> tuple[list[str], Path, str]:
    """The words that `prepare` reads, the other `src`, and which figures are measured."""
    parser = argparse.ArgumentParser(description="This version beside another one")
    parser.add_argument("other", type=Path, help="a checkout of the other version")
    parser.add_argument("--only", default="", help="figures whose name has this text; store")
    found, rest = parser.parse_known_args(given[1:])
    source = (found.other / "src").resolve()
    if not (source / "rallypoint").is_dir():
        parser.error(f"{found.other}: no checkout of Rallypoint (it has no src/rallypoint)")
    return [given[0], *rest], source, found.only


def figures() -> dict[str, Measure]:
    """What is measured by starting jobs. Seconds, unless the name says otherwise."""
    few, many = (2, 4) if is_quick() else (4, 64)
    each = "--nproc-per-node={}".format
    restarts, rest_s = "--max-restarts=1", 2.0 if is_quick() else 10.0
    return {
        "launch, 1 worker": partial(first_line, 1, rallypoint()),
        f"launch, {many} workers": partial(first_line, many, rallypoint(each(many))),
        "agent at rest, MB": lambda: weigh(rallypoint(each(2)))[0],
        "agent and helpers at rest, MB": lambda: weigh(rallypoint(each(2)))[1],
        "agent whose workers report steps, MB": lambda: weigh(rallypoint(each(2)), "steps")[0],
        "agent at rest, % of a core": lambda: cpu_at_rest(rallypoint(each(2)), "stay", rest_s),
        "agent whose workers report steps, % of a core": lambda: cpu_at_rest(
            rallypoint(each(2)), "steps", rest_s
        ),
        "clean end, 2 nodes": partial(agents_end, rallypoint("--nnodes=2", each(2))),
        f"worker killed, {few} workers": partial(
            worker_killed, few, rallypoint(each(few), restarts)
        ),
        "worker killed, --preload": partial(
            forked_again, rallypoint(restarts, "--preload=asyncio"), "asyncio"
        ),
        "agent killed, 2 nodes": partial(agent_killed, "stay", rallypoint("--restart-grace=1")),
        "output of 4 workers, --output prefix": written,
        "64 nodes meet" if not is_quick() else "2 nodes meet": meet,
        "worker.progress, us": called,
    }


def row(name: str, measure: Measure, other: Path, times: int) -> list[str]:
    """One figure, in turn."""
    found: dict[str, list[float]] = {"other": [], "this": [], "again": []}
    sources = {"other": other, "this": SRC, "again": other}
    for turn in range(times):
        order = list(sources)[:: 1 if turn % 2 == 0 else -1]
        for variant in order:
            with version(sources[variant]):
                found[variant].append(measure())
    return judged(name, found, times)


def judged(name: str, found: dict[str, list[float]], times: int) -> list[str]:
    """A line of the table: ratios turn by turn, and whether this version is as good."""
    other = [(a + b) / 2 for a, b in zip(found["other"], found["again"], strict=True)]
    ratios = [ours / theirs for ours, theirs in zip(found["this"], other, strict=True)]
    itself = [b / a for a, b in zip(found["other"], found["again"], strict=True)]
    apart = sorted(max(ratio, 1 / ratio) for ratio in itself)
    limit = max(LARGEST, apart[3 * (len(apart) - 1) // 4])
    told = "as good" if median(ratios) <= limit else "worse"
    both = [*found["other"], *found["again"]]
    cells = [spread(both), spread(found["this"]), spread(ratios), spread(itself)]
    return [name, *cells, told, str(times)]


@contextmanager
def version(source: Path) -> Iterator[None]:
    """What is started here runs that version."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(source)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def written() -> float:
    """Seconds until all lines of four workers have come through the relay."""
    run = Run(
        rallypoint("--nproc-per-node=4", "--output=prefix"),
        4,
        "storm",
        2000 if is_quick() else 40_000,
    )
    for _ in run.pieces():
        pass
    return run.took_s


def meet() -> float:
    """Seconds until all nodes have met by a coordinator."""
    command = [sys.executable, str(HERE / "rendezvous_nodes.py"), "coordinator"]
    nodes = "2" if is_quick() else "64"
    done = subprocess.run([*command, nodes], capture_output=True, text=True, check=True, timeout=60)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def called() -> float:
    """Microseconds of a call in a worker."""
    own = [str(HERE / "calls.py"), "--measure", "2000" if is_quick() else "100000"]
    done = subprocess.run(
        [*rallypoint("--quiet"), *own], capture_output=True, text=True, check=True, timeout=60
    )
    return float(json.loads(done.stdout)["worker.progress(7)"])


@contextmanager
def hosted_store() -> Iterator[int]:
    """The port of a store that the command of this version hosts."""
    command = [sys.executable, "-m", "rallypoint", "store", "--host=127.0.0.1", "--port=0"]
    with subprocess.Popen([*command, "--insecure"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            port = re.search(r"127\.0\.0\.1:(\d+)", line)
            if port is None:
                raise SystemExit(f"{process.args!r} printed {line!r} instead of its port")
            yield int(port[1])
        finally:
            process.kill()


def store_rows(other: Path, times: int) -> list[list[str]]:
    """Microseconds of an operation of 64 bytes, by our client of this version."""
    rows = []
    count = 200 if is_quick() else 4000
    with ExitStack() as open_:
        ports = {}
        for variant, source in {"other": other, "this": SRC, "again": other}.items():
            with version(source):
                ports[variant] = open_.enter_context(hosted_store())
        clients = Clients([open_.enter_context(running("store_worker.py"))])
        for name in ("set", "get"):
            found: dict[str, list[float]] = {variant: [] for variant in ports}
            for turn in range(times):
                for variant in list(ports)[:: 1 if turn % 2 == 0 else -1]:
                    job = {"port": ports[variant], "client": "ours", "name": name, "size": 64}
                    found[variant].append(1e3 / rate(clients, 1, count, **job))
            rows.append(judged(f"store, {name} of 64 B, us", found, times))
    return rows


if __name__ == "__main__":
    sys.exit(main())
