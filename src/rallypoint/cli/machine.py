"""The questions of a command line to this machine: programs, devices, and packages' plug-ins.

Each answer is looked up when it is needed, because few of them are needed to start a job.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from errno import EDQUOT, EFBIG, ENOSPC, EROFS
from typing import TYPE_CHECKING

from rallypoint.agent.environ import kept_jobs
from rallypoint.cli import raise_interrupts
from rallypoint.config import RegisterConfig, password_variable
from rallypoint.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    from rallypoint.cli.accelerators import Nvidia

AskInterpreter = Callable[[str, str, Mapping[str, str]], str | None]
"""The function that runs Python code (its second argument) by an interpreter in an environment.

It returns the code's stdout; None if it failed."""

_ASK_TORCH = {
    "gpu": "import torch; print(torch.cuda.device_count())",
    "xpu": "import torch; print(torch.xpu.device_count())",
    "auto": "import torch; print(torch.accelerator.device_count())",
}
_LASTING = (ENOSPC, EDQUOT, EROFS)
"""The errors of a file system that count as permanent: full, over a quota, or read-only."""
_RECORDS = ".local/state/rallypoint/jobs"
_MISSING = r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'"


class ThisHost:
    """The facts of this machine that a command line needs; tests replace them."""

    interpreter = sys.executable

    def count_workers(
        self, word: str, interpreter: str, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> int:
        """Return how many workers `cpu`, `gpu`, `xpu` or `auto` means here; 0: no such device.

        With `auto`, one for each CPU if there is no device. `tell` is called with a line for the
        user if torch has to be asked, which `interpreter` runs and which takes seconds.
        """
        return count_workers(word, interpreter, environ, tell)

    def count_gpus(self, environ: Mapping[str, str]) -> int:
        """Return how many GPUs of NVIDIA or AMD a program sees; 0 also if only torch could tell.

        Blocks for as long as the driver takes.
        """
        from rallypoint.cli import accelerators

        return accelerators.look("gpu", environ, accelerators.ask_nvidia()).count

    def find_program(self, name: str) -> str | None:
        """Return the path of a program in PATH, or None."""
        from shutil import which

        return which(name)

    def script_exists(self, path: str) -> bool:
        """Return whether the path exists, or has a __main__.py if it is a directory."""
        return os.path.exists(os.path.join(path, "__main__.py") if os.path.isdir(path) else path)

    def path_kind(self, path: str) -> str:
        """Return `directory`, or `file` for anything else that exists; empty: there is nothing."""
        if os.path.isdir(path):
            return "directory"
        return "file" if os.path.exists(path) else ""

    def head(self, path: str) -> bytes:
        """Return the first 4096 bytes of a file.

        Returns b"" for anything but a plain file: a pipe is read only once. Raises OSError.
        """
        if not os.path.isfile(path):
            return b""
        with open(path, "rb", buffering=0) as file:
            return file.read(4096)

    def has_module(self, name: str) -> bool:
        """Return whether the current directory has a module, or this Python finds its top package.

        Imports none.
        """
        from importlib.util import find_spec

        top, path = name.partition(".")[0], name.replace(".", "/")
        if os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__init__.py"):
            return True
        try:
            return find_spec(top) is not None
        except (ImportError, ValueError):
            return False

    def absolute_path(self, path: str) -> str:
        """Return the absolute path; a relative one is in the current directory."""
        return os.path.abspath(path)

    def read_text(self, path: str) -> str:
        """Return the first 4096 characters of a text file.

        Raises OSError and UnicodeDecodeError.
        """
        with open(path, encoding="utf-8") as file:
            return file.read(4096)

    def read_whole(self, path: str) -> str:
        """Return the text of a file.

        Raises UnicodeDecodeError, and OSError also for more than 2^22 characters.
        """
        with open(path, encoding="utf-8") as file:
            text = file.read((1 << 22) + 1)
        if len(text) > 1 << 22:
            raise OSError(EFBIG, "it has more than 4 MiB")
        return text

    def ask_command(self, command: str, timeout_s: float) -> str | None:
        """Return the output of a shell command; None if it fails or takes longer than `timeout_s`.

        Blocks meanwhile; Ctrl-C raises KeyboardInterrupt.
        """
        from rallypoint.process.devices import ask_program

        raise_interrupts()  # Who is asked must not be left behind.
        return ask_program(["/bin/sh", "-c", command], os.environ, timeout_s=timeout_s)

    def password(self, backend: str) -> str:
        """Return the value of the variable with this backend's password; empty: it is not set."""
        return os.environ.get(password_variable(backend), "")

    def check_register(self, register: RegisterConfig) -> None:
        """Check the settings of the place where records of jobs lie, without I/O.

        Raises UsageError, also if this machine lacks what is needed, and RendezvousPlugInError.
        """
        from rallypoint.register.engines import Use, make

        make(register, Use())

    def kept_jobs(self) -> str:
        """Return the directory that keeps how this user's jobs have ended; empty: there is none.

        Raises UsageError for a RALLYPOINT_STATE_DIR that is not the name of a directory.
        """
        return kept_jobs()

    def shared_home(self) -> str:
        """Return the directory for records of jobs in the user's home, if other machines share it.

        Empty: they do not, or there is no home. Blocks as long as a file server does not answer.
        """
        from rallypoint.coordinator.client.token import user_home
        from rallypoint.file_systems import is_shared

        home = user_home()
        return os.path.join(home, _RECORDS) if home is not None and is_shared(home) else ""

    def why_no_records(self, path: str) -> str:
        """Return why the records of jobs can't be kept in this directory; empty: they can.

        The directory is made if it is missing. Empty also for a fault of the file server that may
        be temporary. Blocks as `shared_home`.
        """
        from rallypoint.core.settings import FOR_DIRECTORIES
        from rallypoint.register.engines import Use, make

        try:
            make(RegisterConfig(FOR_DIRECTORIES, path), Use()).prepare()
        except UsageError as error:
            return str(error)
        except InfrastructureError as error:
            cause = error.__cause__
            return str(error) if isinstance(cause, OSError) and cause.errno in _LASTING else ""
        return ""

    def now(self) -> float:
        """Return the time, in seconds since 1970."""
        return time.time()

    def random_id(self) -> str:
        """Return a random id that can be read aloud: `job-` and 40 random bits in base 32."""
        bits = int.from_bytes(os.urandom(5), "big")
        letters = "abcdefghijkmnpqrstuvwxyz23456789"
        return "job-" + "".join(letters[bits >> shift & 31] for shift in range(35, -1, -5))

    def handlers(self) -> Sequence[str]:
        """Return the names of all rendezvous backends: built in, of packages, or registered."""
        from rallypoint.elastic.rendezvous.api import known_backends

        return known_backends()

    def logs_specs(self) -> Sequence[str]:
        """Return the names that --logs-specs takes."""
        from rallypoint.process.logs.specs import known_logs_specs

        return known_logs_specs()

    def event_handlers(self) -> Sequence[str]:
        """Return the names that --event-log-handler takes."""
        from rallypoint.observe.event_handlers import known_event_handlers

        return known_event_handlers()


def count_workers(
    word: str,
    interpreter: str,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    nvidia: Nvidia | None = None,
    ask: AskInterpreter | None = None,
    root: str = "/",
) -> int:
    """Return how many workers `cpu`, `gpu`, `xpu` or `auto` means here; 0: no such device.

    With `auto`, one for each CPU if there is no device. `tell` is called with a line for the user
    if torch has to be asked, which `interpreter` runs and which takes seconds.
    """
    if word == "cpu":
        return cpu_count()
    from rallypoint.cli import accelerators

    if nvidia is None:
        nvidia = accelerators.Nvidia() if word == "xpu" else accelerators.ask_nvidia()
    seen = accelerators.look(word, environ, nvidia, root)
    found = seen.count
    if seen.ask_why:
        tell(
            f"--nproc-per-node {word}: asking torch for the devices, which takes seconds: "
            f"{seen.ask_why}"
        )
        found = _ask_torch(word, interpreter, environ, ask or _ask)
    return cpu_count() if word == "auto" and found == 0 else found


def brief(path: str) -> str:
    """Return the absolute path as a user may type it in a shell, quoted if needed.

    A path in the user's home that needs no quotes begins with `~`.
    """
    from shlex import quote

    from rallypoint.coordinator.client.token import user_home

    home, text = user_home(), os.path.abspath(path)
    is_inside = home is not None and text.startswith(f"{home}/")
    rest = text[len(home or "") :] if is_inside else text
    return f"~{rest}" if is_inside and quote(rest) == rest else quote(text)


def cpu_count() -> int:
    """Return the number of CPUs this process may use (containers and schedulers limit them)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _ask_torch(word: str, interpreter: str, environ: Mapping[str, str], ask: AskInterpreter) -> int:
    answer = ask(interpreter, _ASK_TORCH[word], environ)
    last = (answer or "").split()[-1:]  # libraries may print before us
    return int(last[0]) if last and last[0].isdecimal() else 0


def _ask(interpreter: str, program: str, environ: Mapping[str, str]) -> str | None:
    from rallypoint.process.devices import ask_interpreter

    raise_interrupts()  # It must not be left behind.
    return ask_interpreter(interpreter, program, environ, timeout_s=60.0)


def other_python_hint(
    message: str,
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    own_python: str = sys.executable,
    find_program: Callable[[str], str | None] | None = None,
) -> tuple[str, ...]:
    """Return a hint that the script's packages may be installed for another Python.

    With pipx and uv tool, workers are run by the interpreter that runs Rallypoint, unless
    PYTHON_EXEC names another. One line when a worker of the command `argv` failed because of a
    missing module, was run by `own_python`, and there is another one; else none. `message` is
    the error of the worker that failed first.
    """
    missing, environ = re.match(_MISSING, message), os.environ if environ is None else environ
    if missing is None or list(argv[:1]) != [own_python]:
        return ()
    roots = (environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", ""))
    places = [os.path.join(root, "bin", "python") for root in roots if root]
    find_program = find_program or ThisHost().find_program
    found = filter(None, map(find_program, (*places, "python", "python3")))
    other = next((path for path in found if _folder(path) != _folder(own_python)), None)
    if other is None:
        return ()
    by = f"the workers ran with {own_python}, the interpreter of rallypoint"
    fix = f"if {missing['module']} is installed for {other}, set PYTHON_EXEC={other}"
    return (f"    what to do: {by}; {fix}",)


def _folder(python: str) -> str:
    """Return the real path of the folder that has a Python, which may itself be a link.

    That link is not followed: a virtual environment's Python is one.
    """
    return os.path.realpath(os.path.dirname(os.path.abspath(python)))
