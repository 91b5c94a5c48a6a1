"""The reasons why the words after the options can't be run, and the fixes.

Pure: `ThisHost` looks at files and programs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

from rallypoint.cli.machine import ThisHost
from rallypoint.core.text import shown
from rallypoint.errors import UsageError

_OTHER_LANGUAGES = frozenset(
    {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "perl", "ruby"}
    | {"node", "Rscript", "julia", "lua", "awk", "make", "php", "tclsh", "pwsh"}
)
"""The interpreters of other languages than Python, by their names in a first line (`#!`)."""
_NO_SCRIPT = "a program, not a Python script"
_PROGRAMS = frozenset({"python", "python3", "bash", "sh", "srun", "mpirun", "torchrun"})
_PROGRAMS |= {"accelerate", "deepspeed", "rallypoint"}
"""The names of programs that are no script of the user's, also where no file can be looked at."""
_PYTHON = re.compile(r"python(\d+(\.\d+)?t?)?", re.ASCII)
_SHELL_SCRIPTS = (".sh", ".bash", ".zsh", ".ksh", ".csh", ".slurm", ".sbatch")
_SETTINGS = (".json", ".yaml", ".yml", ".toml")
_NO_MODULES = (".py", ".ipynb", ".md", ".txt", *_SHELL_SCRIPTS, *_SETTINGS)
"""The endings of file names that are not those of modules."""
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""The characters that word processors put in the place of an option's two dashes."""
_TO_PYTHON = ("'''", '"""')
"""The beginnings of the second line of a shell script that passes itself to Python, as pip makes
them."""


def _why_no_program(program: str, after: Sequence[str], machine: ThisHost) -> str:
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


def _why_no_module(module: str, after: Sequence[str], machine: ThisHost) -> str:
    if not module.strip():
        return _no_name("the module's")
    if machine.path_kind(module) == "file":
        return "a file, not a module: leave -m out"
    parts = [part for part in module.removesuffix(".py").split("/") if part.strip(".")]
    return f"not the name of a module; did you mean -m {shown('.'.join(parts) or 'NAME')}?"


def _why_no_script(script: str, after: Sequence[str], machine: ThisHost) -> str:
    if not script.strip():
        return _no_name("the script's")
    if machine.path_kind(script) == "directory":
        return "a directory without a __main__.py; name the script in it"
    if script == "-":
        return "the workers can't read a script from stdin: give the name of a file"
    if script[0] in _DASHES:
        option = "--" + script.strip(_DASHES)
        return f"it begins with another character than the dash of options: give {shown(option)}"
    if script in _PROGRAMS or ("/" not in script and machine.find_program(script) is not None):
        return _a_program(script, after)
    if after and machine.path_kind(whole := f"{script} {after[0]}") == "file":
        return f"no such file; a name with blanks needs quotes: {whole!r}"
    if machine.path_kind(f"{script}.py") == "file":
        return f"no such file; did you mean {shown(script)}.py?"
    if all(word.isidentifier() for word in script.split(".")) and not script.endswith(".py"):
        if machine.has_module(script):
            return "no such file, but a module: add -m"
        if "." in script and not script.lower().endswith(_NO_MODULES):
            return "no such file; if it is a module, add -m"
    if why := _one_word(script, machine):
        return why
    if "." in script or "/" in script:
        return "no such file"
    lead = _before_a_script(script, after)
    target = next((word for word in after if word.endswith(".py")), "")
    fix = f"; to run {shown(target)}, leave out {shown(' '.join(lead))}" if lead else ""
    return f"no such file, and no such program{fix}"


def generated_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the script and its arguments for a generated Slurm script or Kubernetes manifest.

    By default it is train.py. The script is on another machine. Raises UsageError for a well-known
    program in its place.
    """
    script, *after = words or ("train.py",)
    if _is_program(script):
        fix = _leave_out(script, after) or "name the script itself"
        raise UsageError(f"{script}: {_NO_SCRIPT}: {fix}")
    return (script, *after)


def refuse_a_program(words: Sequence[str]) -> None:
    """Raise UsageError for a well-known program in the place of a script on other machines."""
    script, *after = words
    if _is_program(script):
        raise UsageError(f"{script}: {_a_program(script, after)}")


def _is_program(script: str) -> bool:
    """Return whether this is the name of a program, not of a script. Accesses no file."""
    return script in _PROGRAMS or _PYTHON.fullmatch(os.path.basename(script)) is not None


def _a_program(program: str, after: Sequence[str]) -> str:
    leave = _leave_out(program, after)
    return f"{_NO_SCRIPT}: {f'{leave}, or ' if leave else ''}add --no-python"


def _leave_out(program: str, after: Sequence[str]) -> str:
    """Return the fix for a program in the place of a script; empty: no script follows it."""
    lead = _before_a_script(program, after)
    if len(lead) > 1:
        return f"leave out {shown(' '.join(lead))}"
    return "leave it out" if lead else ""


def _before_a_script(first: str, after: Sequence[str]) -> list[str]:
    """Return the words before a script that have to be left out; none: there is no script.

    The options of another launcher stay: most have the same names here.
    """
    is_python = os.path.basename(first).startswith("python")
    lead = [first]
    for word in after:
        if word.endswith(".py") or (word == "-m" and is_python):
            return lead
        if word.startswith("-") and not is_python:
            break
        lead.append(word)
    return lead if any(word.endswith(".py") for word in after) else []


def _why_not_python(script: str, after: Sequence[str], machine: ThisHost) -> str:
    """Return the reason not to run an existing file by Python; empty: there is none."""
    try:
        head = machine.head(script).removeprefix(b"\xef\xbb\xbf")
    except PermissionError:
        return "may not be read: give this user the right (chmod u+r)"
    suffix = os.path.splitext(script)[1].lower()
    if suffix == ".ipynb" or (head.lstrip().startswith(b"{") and b'"nbformat"' in head):
        return (
            "a notebook, not a Python script: make one of it "
            f"(jupyter nbconvert --to script {shown(script)})"
        )
    if suffix in _SETTINGS:
        return "a file of settings, not a Python script; the script comes first"
    if head.startswith(b"\x7fELF"):
        return _a_program(script, after)
    lines = head.decode("utf-8", "replace").splitlines()
    if not head.startswith(b"#!"):
        shell = "bash" if suffix in _SHELL_SCRIPTS else ""
        return _of_another_language(shell, script, machine) if shell else ""
    if len(lines) > 1 and lines[1].startswith(_TO_PYTHON):
        return ""
    by = _interpreter_of(lines[0])
    return _of_another_language(by, script, machine) if by in _OTHER_LANGUAGES else ""


def _of_another_language(by: str, script: str, machine: ThisHost) -> str:
    path = script if "/" in script else f"./{script}"
    runs = machine.find_program(path) is not None
    words = shown(path) if runs else f"{by} {shown(path)}"
    return f"a script of {by}, not of Python: give --no-python {words}"


def _interpreter_of(line: str) -> str:
    """Return the program in a first line such as `#!/usr/bin/env -S bash -e`; empty: none."""
    words = [os.path.basename(word) for word in line[2:].split()]
    if words[:1] == ["env"]:
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else ""


def _one_word(text: str, machine: ThisHost) -> str:
    """Return the error for a whole command within quotes, taken for one name; empty: it is none."""
    first, *others = text.split() or [""]
    if not others or (machine.path_kind(first) != "file" and machine.find_program(first) is None):
        return ""
    return f"no such file; this is one word, with blanks in it: leave out the quotes around {first}"


def _no_name(whose: str) -> str:
    return (
        f"{whose} name is empty; for example: rallypoint run train.py (a backslash that continues "
        "a line must be its last character)"
    )


REASONS: Mapping[str, Callable[[str, Sequence[str], ThisHost], str]] = {
    "program": _why_no_program,
    "module": _why_no_module,
    "script": _why_no_script,
    "file": _why_not_python,
}
"""The functions that return why a name can't be run, by the kind of name; empty: it can. They get
the name, the words after it, and the machine; `file` is an existing script."""
