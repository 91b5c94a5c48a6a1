"""The hint that workers could be run by another Python."""

from __future__ import annotations

import pytest

from rallypoint.cli.machine import other_python_hint

OWN = "/opt/pipx/rallypoint/bin/python"
NO_TORCH = "ModuleNotFoundError: No module named 'torch'"


def hint(
    message: str = NO_TORCH,
    python: str = OWN,
    programs: tuple[str, ...] = (),
    **environ: str,
) -> tuple[str, ...]:
    known = {path.rpartition("/")[2]: path for path in reversed(programs)}
    known |= {path: path for path in programs}
    return other_python_hint(message, (python, "-u", "train.py"), environ, OWN, known.get)


def test_the_python_of_the_path_is_named() -> None:
    (line,) = hint(programs=("/usr/bin/python3",))
    assert line == (
        f"    what to do: the workers ran with {OWN}, the interpreter of rallypoint; if torch "
        "is installed "
        "for /usr/bin/python3, set PYTHON_EXEC=/usr/bin/python3"
    )


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_comes_first(variable: str) -> None:
    programs = ("/usr/bin/python", "/opt/env/bin/python")
    (line,) = hint(programs=programs, **{variable: "/opt/env"})
    assert line.endswith("set PYTHON_EXEC=/opt/env/bin/python")


@pytest.mark.parametrize(
    "said",
    [
        hint(programs=()),
        hint(programs=(OWN,)),
        hint(programs=("/usr/bin/python",), python="/usr/bin/other"),
        hint("ImportError: cannot import name 'x'", programs=("/usr/bin/python",)),
        hint("ValueError: No module named 'torch'", programs=("/usr/bin/python",)),
    ],
    ids=["no other", "our own", "PYTHON_EXEC given", "another error", "a mere text"],
)
def test_nothing_is_said_where_it_would_not_help(said: tuple[str, ...]) -> None:
    assert said == ()
