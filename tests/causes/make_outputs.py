"""Makes the files in `outputs`: runs each program of `cases.py` with the real libraries.

    python -m tests.causes.make_outputs [--only NAME] PYTHON...

PYTHON: interpreters that have the packages of `cases.PACKAGES`; the first one that has what a
program needs runs it. Python's start-up, paths and addresses are those of /srv/user.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.causes.cases import CASES, PACKAGES, PROGRAMS, Case

OUTPUTS = Path(__file__).with_name("outputs")
STDERR, STDOUT = "==> stderr <==", "==> stdout <=="
_HOME, _PLACE = "/srv/user", "/tmp/case"
"""As long as each other, as boxes are drawn around them."""
_FOUND = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]).partition('+')[0])"


def main(words: Sequence[str]) -> int:
    """Write the files; names those that could not be made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("pythons", nargs="+")
    asked = parser.parse_args(words)
    OUTPUTS.mkdir(exist_ok=True)
    missing = []
    for name, case in CASES.items():
        if asked.only and not re.fullmatch(asked.only, name):
            continue
        python = next((each for each in asked.pythons if has(each, case.needs)), None)
        if python is None:
            missing.append(name)
        else:
            (OUTPUTS / f"{name}.txt").write_text(output_of(case, os.path.abspath(python)))
    print(f"not made: {', '.join(missing)}" if missing else "all made")
    return bool(missing)


def has(python: str, needs: str) -> bool:
    """Whether this interpreter has the package in the right version."""
    if needs.startswith("python3"):
        said = _said(python, "import sys; print('python%d.%d' % sys.version_info[:2])")
        return said == needs
    wanted = next((one for one in PACKAGES if one.partition("==")[0] == needs), "")
    return not needs or _said(python, _FOUND, needs) == wanted.partition("==")[2]


def output_of(case: Case, python: str) -> str:
    """How the program ended, and what it wrote, without what only this machine has."""
    place = Path(_PLACE)
    if case.directory:
        shutil.copytree(PROGRAMS / case.directory, place)
    else:
        place.mkdir()
    try:
        if not case.directory:
            (place / "train.py").write_text(case.program)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(place),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "PYTHONFAULTHANDLER": "1",
            **dict(one.split("=", 1) for one in case.environment),
        }
        ran = subprocess.run(
            ["bash", "-c", f"exec 2>&2; {case.command.format(python=python)}"],
            cwd=place,
            env=environment,
            capture_output=True,
            timeout=300,
        )
        code = ran.returncode
        ended = (
            f"exit code {code}"
            if 0 <= code < 128
            else f"signal {code - 128 if code > 0 else -code}"
        )
        parts = [ended, STDERR, ran.stderr.decode(errors="replace")]
        if ran.stdout:
            parts += [STDOUT, ran.stdout.decode(errors="replace")]
        return neutral("\n".join(parts), python)
    finally:
        shutil.rmtree(place)


def neutral(text: str, python: str) -> str:
    """Without paths, addresses and pids of this machine."""
    prefix = _said(python, "import sys; print(sys.prefix)")
    base = _said(python, "import sys; print(sys.base_prefix)")
    for path, name in ((_PLACE, _HOME), (prefix, "/opt/venv"), (base, "/usr")):
        text = re.sub(re.escape(path) + r"\b", name, text)
    text = re.sub(r"0x[0-9a-f]{8,}", "0x7f0000000000", text)
    return re.sub(r"/tmp/\w+", "/tmp/made", text)


def _said(python: str, *words: str) -> str:
    ran = subprocess.run([python, "-c", *words], capture_output=True, text=True)
    return ran.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
