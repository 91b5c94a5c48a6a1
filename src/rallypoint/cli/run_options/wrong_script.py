"""Explain why the words behind the options can't be run as they were written, and name the fix. The
file itself is looked at first. Pure: `Machine` looks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from rallypoint.cli.machine import Machine
from rallypoint.core.text import shown

_A_PROGRAM = "a program, not a Python script: leave it out, or add --no-python"
_OTHER_LANGUAGES = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "perl", "ruby"}
    | {"node", "Rscript", "julia", "lua", "awk", "make", "php", "tclsh", "pwsh"}
)
"""Interpreters by the names that a first line (`#!`) has for them."""
_SHELL_SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".slurm", ".sbatch")
_SETTINGS = (".json", ".yaml", ".yml", ".toml")
_TO_PYTHON = ("'''", '"""')
"""How the second line begins of a file that a shell hands on to Python, as pip makes them."""


def _why_no_program(program: str, machine: Machine) -> str:
    if not program.strip():
        return _no_name("the program's")
    kind = machine.path_kind(program)
    if kind == "directory":
        return "a directory, not a program"
    if kind and program.endswith(".py"):
        return "a Python script: leave --no-python out"
    if kind and "/" not in program:
        return f"no such program in PATH; for the one in this directory: ./{program}"
    if kind:
        return "may not be executed: chmod +x it, or name its interpreter first"
    return _one_word(program, machine) or "no such program; check its path, or PATH"


def _why_no_module(module: str, machine: Machine) -> str:
    if not module.strip():
        return _no_name("the module's")
    if machine.path_kind(module) == "file":
        return "a file, not a module: leave -m out"
    name = module.removesuffix(".py").strip("/").replace("/", ".")
    return f"not the name of a module; did you mean -m {shown(name)}?"


def _why_no_script(script: str, machine: Machine) -> str:
    if not script.strip():
        return _no_name("the script's")
    if machine.path_kind(script) == "directory":
        return "a directory without a __main__.py; name the script in it"
    if "/" not in script and machine.find_program(script) is not None:
        return _A_PROGRAM
    if machine.path_kind(f"{script}.py") == "file":
        return f"no such file; did you mean {shown(script)}.py?"
    if all(word.isidentifier() for word in script.split(".")) and not script.endswith(".py"):
        if machine.has_module(script):
            return "no such file, but a module: add -m"
        if "." in script:
            return "no such file; if it is a module, add -m"
    if why := _one_word(script, machine):
        return why
    return "no such file" if "." in script or "/" in script else "no such file, and no such program"


def _why_not_python(script: str, machine: Machine) -> str:
    """The reason not to run an existing file by Python; empty: there is none."""
    try:
        head, suffix = machine.head(script), os.path.splitext(script)[1].lower()
    except PermissionError:
        return "may not be read: give this user the right (chmod u+r)"
    if suffix == ".ipynb" or (head.lstrip().startswith(b"{") and b'"nbformat"' in head):
        return (
            "a notebook, not a Python script: make one of it "
            f"(jupyter nbconvert --to script {shown(script)})"
        )
    if suffix in _SETTINGS:
        return "a file of settings, not a Python script; the script comes first"
    if head.startswith(b"\x7fELF"):
        return _A_PROGRAM
    lines = head.decode("utf-8", "replace").splitlines()
    if not head.startswith(b"#!"):
        shell = "bash" if suffix in _SHELL_SCRIPTS else ""
        return _of_another_language(shell, script, machine) if shell else ""
    if len(lines) > 1 and lines[1].startswith(_TO_PYTHON):
        return ""
    by = _interpreter_of(lines[0])
    return _of_another_language(by, script, machine) if by in _OTHER_LANGUAGES else ""


def _of_another_language(by: str, script: str, machine: Machine) -> str:
    path = script if "/" in script else f"./{script}"
    runs = machine.find_program(path) is not None
    words = shown(path) if runs else f"{by} {shown(path)}"
    return f"a script of {by}, not of Python: give --no-python {words}"


def _interpreter_of(line: str) -> str:
    """The program in a first line such as `#!/usr/bin/env -S bash -e`; empty: none."""
    words = [os.path.basename(word) for word in line[2:].split()]
    if words[:1] == ["env"]:
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def _one_word(text: str, machine: Machine) -> str:
    """For a whole command within quotes."""
    first, *others = text.split() or [""]
    if not others or (machine.path_kind(first) != "file" and machine.find_program(first) is None):
        return ""
    return f"no such file; this is one word, with blanks in it: leave out the quotes around {first}"


def _no_name(whose: str) -> str:
    return (
        f"{whose} name is empty; for example: rallypoint run train.py (a backslash that continues "
        "a line must be its last character)"
    )


REASONS: Mapping[str, Callable[[str, Machine], str]] = {
    "program": _why_no_program,
    "module": _why_no_module,
    "script": _why_no_script,
    "file": _why_not_python,
}
"""One function for each kind of name; `file` is a script that exists."""
