"""Fails in many ways under `record`, torch's or ours, and leaves what it wrote.

    failing.py torch|ours FOLDER

FOLDER/<name of the case>.json is the error file; FOLDER/ends has, as JSON, how the decorated
function ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

PACKAGES = {
    "torch": "torch.distributed.elastic.multiprocessing.errors",
    "ours": "rallypoint.elastic.multiprocessing",
}
who, folder = sys.argv[1:]
package: Any = import_module(PACKAGES[who])


class OwnError(Exception):
    def __str__(self) -> str:
        return "my own"


def chained() -> None:
    try:
        os.environ["NO_SUCH_WEIGHTS"]
    except KeyError as error:
        raise RuntimeError("no checkpoint") from error


def raises(error: BaseException) -> None:
    raise error


def child(package: Any, content: object) -> None:
    """A failure of a child process, whose error file has this content."""
    path = os.path.join(folder, "child.json")
    with open(path, "w") as file:
        file.write(json.dumps(content))
    failure = package.ProcessFailure(1, 22, 7, path)
    raise package.ChildFailedError("trainer", {3: failure})


NESTED = {"message": {"message": "M", "extraInfo": {"py_callstack": "T", "timestamp": "5"}}}
CASES: dict[str, Callable[[Any], object]] = {
    "plain": lambda package: raises(ValueError("the loss is\nnän")),
    "empty": lambda package: raises(Exception()),
    "quoted": lambda package: raises(KeyError("weights")),
    "own": lambda package: raises(OwnError()),
    "chained": lambda package: chained(),
    "group": lambda package: raises(ExceptionGroup("two", [ValueError(1), TypeError(2)])),
    "system": lambda package: raises(FileNotFoundError(2, "No such file", "data.bin")),
    "exit none": lambda package: raises(SystemExit()),
    "exit 0": lambda package: raises(SystemExit(0)),
    "exit 3": lambda package: raises(SystemExit(3)),
    "exit text": lambda package: raises(SystemExit("text")),
    "interrupt": lambda package: raises(KeyboardInterrupt()),
    "returns": lambda package: 42,
    "child": partial(child, content=NESTED),
    "child of the short form": partial(child, content={"message": "text", "timestamp": 12}),
}
ends: dict[str, str] = {}
for name, case in CASES.items():
    os.environ["TORCHELASTIC_ERROR_FILE"] = os.path.join(folder, f"{name}.json")
    try:
        end = repr(package.record(case)(package))
    except BaseException as error:
        end = type(error).__name__
    ends[name] = end
with open(os.path.join(folder, "ends"), "w") as file:
    json.dump(ends, file)
