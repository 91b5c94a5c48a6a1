"""Installs the wheel for each Python that is found, and runs a job of two nodes through a kill.

    python -m tools.wheel_job [--files] [VERSION...]

The wheel is built first, in `dist/`. For each version an environment of its own gets the wheel and
what it needs, and nothing of this repository. There two agents meet on loopback, a worker is killed
with SIGKILL, both workers come back in the next round, and both agents end with 0. `--files` prints
the names of the files in the wheel.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.installed_files import PLACES
from tools.matrix import VERSIONS, find_python

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120
WORKER = """
import os, pathlib, time
folder, rank = pathlib.Path(os.environ["FOLDER"]), os.environ["RANK"]
round_ = os.environ["TORCHELASTIC_RESTART_COUNT"]
(folder / f"{round_}-{rank}.new").write_text(str(os.getpid()))
os.rename(folder / f"{round_}-{rank}.new", folder / f"{round_}-{rank}")
while round_ == "0":
    time.sleep(0.1)
"""


class JobError(Exception):
    """The job did not do what it should; says what."""


def build() -> Path:
    """Make the wheel, and return its path. Raises CalledProcessError."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run(["make", "--no-print-directory", "dist"], cwd=ROOT, check=True)
    return next((ROOT / "dist").glob("*.whl"))


def lacks(wheel: Path) -> list[str]:
    """Return the files that are not in the wheel: of the package, the man page, completions."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = (file.relative_to(ROOT / "src") for file in (ROOT / "src/rallypoint").rglob("*.*"))
    shared = {name.split(".data/data/", 1)[-1] for name in names}
    return sorted(
        [
            file.as_posix()
            for file in files
            if "__pycache__" not in file.parts and file.as_posix() not in names
        ]
        + [place for place in PLACES.values() if place not in shared]
    )


def install(python: str, wheel: Path, folder: Path) -> Path:
    """Make an environment with nothing but the wheel and what it needs; returns the command."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True)
    return folder / "bin/rallypoint"


def wait(condition: Callable[[], bool], what: str) -> None:
    """Block until the condition holds. Raises JobError after two minutes."""
    ends_at = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > ends_at:
            raise JobError(f"waited {LIMIT_S} s for {what}")
        time.sleep(0.05)


def free_port() -> int:
    """Return a port of loopback that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_job(command: Path, folder: Path) -> None:
    """Run a job of two nodes with one worker each, of which one is killed. Raises JobError."""
    script = folder / "worker.py"
    script.write_text(WORKER)
    words = ["run", "--nnodes", "2", "--max-restarts", "1", "--insecure", "--quiet"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", str(script)]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "FOLDER": str(folder)}
    agents = [
        subprocess.Popen([str(command), *words], cwd=folder, env=env, start_new_session=True)
        for _ in range(2)
    ]
    try:
        wait(lambda: all((folder / f"0-{rank}").exists() for rank in "01"), "two workers")
        os.kill(int((folder / "0-1").read_text()), signal.SIGKILL)
        wait(lambda: all((folder / f"1-{rank}").exists() for rank in "01"), "the next round")
        wait(lambda: all(agent.poll() is not None for agent in agents), "the agents' ends")
        if codes := [agent.returncode for agent in agents if agent.returncode]:
            raise JobError(f"an agent has ended with {codes[0]}")
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


def try_version(python: str, wheel: Path) -> str:
    """Return what became of it, in words."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            command = install(python, wheel, folder / "environment")
        except subprocess.CalledProcessError:
            return "the wheel could not be installed"
        try:
            run_job(command, folder)
        except JobError as error:
            return f"failed: {error}"
    return "a job of two nodes went through a kill"


def main(words: Sequence[str]) -> int:
    """Return the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    args = parser.parse_args(words)
    wheel = build()
    if args.files:
        with zipfile.ZipFile(wheel) as archive:
            print(*sorted(archive.namelist()), sep="\n")
    if missing := lacks(wheel):
        print(f"{wheel.name} lacks {', '.join(missing)}")
        return 1
    pyenv_root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {v: find_python(v, os.environ.get("PATH", ""), pyenv_root) for v in args.versions}
    outcomes = {v: try_version(p, wheel) if p else "not found" for v, p in found.items()}
    print(
        *(f"Python {version}, {wheel.name}: {what}" for version, what in outcomes.items()), sep="\n"
    )
    return int(any(what.startswith("failed") for what in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
