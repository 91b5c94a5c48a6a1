"""The command itself: what it says when it is called wrongly, and its exit codes."""

from __future__ import annotations

import pytest

from rallypoint import __version__
from rallypoint.cli.commands import ROWS
from rallypoint.cli.main import main
from rallypoint.cli.options import parse_run
from rallypoint.wire.versions import SPOKEN

SECONDS = "needs a number of seconds, more than 0"
SEE = " (see rallypoint run --help)"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("rnu x.py", "rallypoint: rnu: no such command; did you mean rallypoint run?"),
        (
            "zzz",
            f"rallypoint: zzz: no such command; known: {', '.join(ROWS)}",
        ),
        (
            "train.py --lr 3",
            "rallypoint: train.py: no such command; to start it: rallypoint run train.py",
        ),
        (
            "--nnodes 2 x.py",
            "rallypoint: --nnodes: options come after the command; try rallypoint run --nnodes ...",
        ),
        ("run --lease 0 x.py", f"rallypoint run: --lease 0: {SECONDS}{SEE}"),
        (
            "run --max-restart train.py",
            (
                "rallypoint run: the script is missing: --max-restarts took train.py as its "
                f"value; give --max-restarts a value, or leave it out{SEE}"
            ),
        ),
        (
            "run --nprocs 2 x.py",
            f"rallypoint run: --nprocs: unknown option; did you mean --nproc-per-node?{SEE}",
        ),
        (
            "token --run-id=",
            (
                "rallypoint token: --run-id '': needs 1 to 255 bytes of printable characters "
                "(see rallypoint token --help)"
            ),
        ),
        (
            "drain",
            (
                "rallypoint drain: the following arguments are required: NODE "
                "(see rallypoint drain --help)"
            ),
        ),
        (
            "sh x.py",
            (
                "rallypoint: sh: no such command; for a program in each worker: "
                "rallypoint run --no-python sh"
            ),
        ),
        ("run no-such-file.py", f"rallypoint run: no-such-file.py: no such file{SEE}"),
        (
            "run",
            (
                "rallypoint run: the script is missing; for example: "
                f"rallypoint run --nproc-per-node 2 train.py{SEE}"
            ),
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == said + "\n"


@pytest.mark.parametrize("line", ["", "--help", "-h", "help", "run --help", "run -h"])
def test_help_is_no_mistake(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: rallypoint ")
    assert err == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == (f"rallypoint {__version__} (session protocol: {SPOKEN})\n")


def test_exit_codes_may_be_chosen() -> None:
    given = ["--exit-code", "failed=7", "--exit-code", "failed=8", __file__]
    config = parse_run(given, {})
    assert config.stop.exit_code("failed") == 8
    assert config.stop.exit_code("infrastructure") == 75
