"""What the exit of a worker passes in its agent, from the kernel's event to the last line printed.

    python tools/exit_path.py SOURCE-DIR SCRATCH-DIR

Runs a job of one worker that raises an exception, in this process, and records every Python call
from the moment when the worker's pidfd is readable until the last line is handed on for printing:
the last call that has the last line of the job's stderr in an argument. Prints a JSON object:

* `modules`: modules of the package whose functions ran.
* `types`: types of the package of which a call was given or returned an instance, also within a
  tuple or list. The `self` of a method does not count, but that of `__init__` does.
"""

from __future__ import annotations

import inspect
import json
import os
import selectors
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = "rallypoint"
LOOKED_AT = 16
"""So many elements of a tuple or list are looked at."""

WORKER = """\
import os
with open({path!r}, "w") as file:
    file.write(str(os.getpid()))
raise RuntimeError("the loss is not a number")
"""


class Recorder:
    """Every call since the exit: its module, the types that it saw, and the texts."""

    def __init__(self, source_dir: Path) -> None:
        self.calls: list[tuple[str, frozenset[str], list[str]]] = []
        self._prefix = f"{source_dir}{os.sep}"

    def start(self) -> None:
        """Record from here on, in all threads of this process."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # calls of C, and bodies of modules and classes
        values = [arg]
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if names[:1] == ("self",) and code.co_name not in ("__init__", "__post_init__"):
                names = names[1:]
            values = [frame.f_locals.get(name) for name in names]
        is_ours = code.co_filename.startswith(self._prefix)
        module = code.co_filename.removeprefix(self._prefix) if is_ours else ""
        seen = list(_spread(values))
        types = frozenset(filter(None, map(_type_name, seen)))
        texts = [
            each if isinstance(each, str) else each.decode("utf-8", "replace")
            for each in seen
            if isinstance(each, str | bytes)
        ]
        if module or types or texts:
            self.calls.append((module, types, texts))

    def until(self, line: str) -> dict[str, list[str]]:
        """Return what was seen up to the last call that was given the line."""
        sys.setprofile(None)
        threading.setprofile(None)
        ends = [
            number
            for number, (_, _, texts) in enumerate(self.calls)
            if any(line in text for text in texts)
        ]
        if not ends:
            raise SystemExit(f"no call was given the last line: {line!r}")
        calls = self.calls[: ends[-1] + 1]
        return {
            "modules": sorted({module for module, _, _ in calls if module}),
            "types": sorted({name for _, types, _ in calls for name in types}),
        }


def _spread(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        yield value
        if isinstance(value, tuple | list):
            yield from value[:LOOKED_AT]


def _type_name(value: object) -> str | None:
    kind = type(value)
    module = kind.__module__
    ours = isinstance(module, str) and module.partition(".")[0] == PACKAGE
    return f"{module}.{kind.__qualname__}" if ours else None


def start_at_exit_of(pid_file: Path, recorder: Recorder) -> None:
    """Start the recorder when a pidfd of the process that is named in the file is readable."""
    pidfds: dict[int, int] = {}
    open_pidfd, select = os.pidfd_open, selectors.EpollSelector.select
    started = False

    def pidfd_open(pid: int, flags: int = 0) -> int:
        fd = open_pidfd(pid, flags)
        pidfds[fd] = pid
        return fd

    def watched(self: Any, timeout: float | None = None) -> Any:
        nonlocal started
        ready = select(self, timeout)
        if not started and any(key.fd in pidfds for key, _ in ready) and pid_file.exists():
            worker = int(pid_file.read_text() or 0)
            if any(pidfds.get(key.fd) == worker for key, _ in ready):
                started = True
                recorder.start()
        return ready

    os.pidfd_open = pidfd_open
    selectors.EpollSelector.select = watched  # type: ignore[method-assign]


def main(source_dir: Path, scratch: Path) -> None:
    """Run the job, and prints what was seen."""
    pid_file, script, said = (scratch / name for name in ("pid", "worker.py", "stderr"))
    script.write_text(WORKER.format(path=str(pid_file)))
    recorder = Recorder(source_dir / PACKAGE)
    start_at_exit_of(pid_file, recorder)
    kept = os.dup(2)
    with said.open("wb") as file:
        os.dup2(file.fileno(), 2)
    from rallypoint.cli.main import main as rallypoint

    code = rallypoint(["run", "--nproc-per-node", "1", str(script)])
    os.dup2(kept, 2)
    printed = [line for line in said.read_text().splitlines() if line.strip()]
    if code != 1 or not printed:
        raise SystemExit(f"the job ended with {code}: {printed}")
    print(json.dumps(recorder.until(printed[-1])))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
