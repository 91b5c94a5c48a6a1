"""Makes the environments that tests/frameworks runs jobs of other frameworks in.

    python -m tools.framework_env [NAME ...]

The names and their pinned packages are in tools/framework_pins.toml; without a name all are made.
Each is .venv/frameworks/NAME, which is kept until its pins change. It has the packages of the
Python that makes it besides, torch among them, so that this one is not installed again. Prints a
line for each: the path of its Python, or why it can't be had. The exit code is 69 if one can't.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tools.other_torch import why

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tools" / "framework_pins.toml"
FOLDER = ROOT / ".venv" / "frameworks"
CANNOT_BE_HAD = 69
PROGRAMS = {"rallypoint": "rallypoint.cli.main", "torchrun": "torch.distributed.run"}
"""Programs of shared packages that each environment has, with its own Python: name -> module."""


class Pins(NamedTuple):
    """What pip installs into one environment, with further words and variables of its own."""

    packages: list[str]
    words: Sequence[str] = ()
    variables: Mapping[str, str] = MappingProxyType({})


def pins() -> dict[str, Pins]:
    """Return the table of the pinned packages, by the names of the environments."""
    return {name: Pins(**row) for name, row in tomllib.loads(PINS.read_text()).items()}


def environment(name: str, folder: Path | None = None) -> Path:
    """Return the Python of the environment of this framework, which is made if it is not there yet.

    Blocks for half a minute when it is made (DeepSpeed: two, it is compiled), and while another
    process makes it. Raises LookupError, one line, where it can't be had. It may be called again:
    pip is asked anew.
    """
    folder, table = folder or FOLDER, pins()
    if name not in table:
        raise LookupError(
            f"no framework {name!r}: tools/framework_pins.toml has {', '.join(table)}"
        )
    made, content = folder / name, f"{sys.version}: {table[name]}"
    python, ready = made / "bin" / "python", made / ".ready"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{name}.lock"):
        if not ready.exists() or ready.read_text() != content:
            shutil.rmtree(made, ignore_errors=True)
            try:
                _make(made, python, table[name])
            except BaseException as error:
                shutil.rmtree(made, ignore_errors=True)
                if isinstance(error, LookupError):
                    raise LookupError(f"{name} can't be had here: {error}") from None
                raise
            ready.write_text(content)
    return python


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file; waits until no other process holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, python: Path, row: Pins) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    shared = sysconfig.get_path("purelib")
    paths = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    # A plain line would not read the .pth files of the shared packages, and so not find this one.
    line = f"import site; site.addsitedir({shared!r})\n"
    Path(paths["purelib"], "shared.pth").write_text(line)
    for program, module in PROGRAMS.items():
        script = folder / "bin" / program
        script.write_text(f"#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    _run([*pip, *row.words, *row.packages, *_shared_torch()], row.variables)


@cache
def _shared_torch() -> Sequence[str]:
    """Has pip keep the shared torch, whatever a package would rather have."""
    try:
        return (f"torch=={version('torch')}",)
    except PackageNotFoundError:
        return ()


def _run(command: list[str], variables: Mapping[str, str] | None = None) -> None:
    env = os.environ | (variables or {})
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(why(done.stdout, done.stderr))


def main(names: Sequence[str]) -> int:
    """Return the command; returns its exit code."""
    code = 0
    for name in names or pins():
        try:
            print(f"{name}: {environment(name)}", flush=True)
        except LookupError as error:
            print(error, flush=True)
            code = CANNOT_BE_HAD
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
