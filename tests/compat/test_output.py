"""Where the output of the same job goes under torchrun and under `rallypoint run`."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.compat.launches import RALLYPOINT, TORCHRUN, plain_environ
from tests.compat.recordings import Recordings
from tests.harness.cluster import free_port
from tests.harness.programs import run_program

TALKS = """
import os, sys
rank = os.environ["LOCAL_RANK"]
for text in ("alpha", "be,ta", "other \\N{SNOWMAN}", "[default0]:gamma"):
    print("out", rank, text)
    print("err", rank, text, file=sys.stderr)
"""


class Output(NamedTuple):
    """All lines of the workers, sorted, for nobody promises an order between them."""

    stdout: list[str]
    stderr: list[str]
    files: dict[str, list[str]]


def launch(launcher: Sequence[str], home: Path, options: list[str], env: dict[str, str]) -> Output:
    """Run TALKS on two workers; what is random in a path is left out."""
    home.mkdir()
    (home / "talks.py").write_text(TALKS)
    meet = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job"]
    words = ["--nproc-per-node=2", "--nnodes=1", "--log-dir=logs", *meet, *options, "talks.py"]
    env = plain_environ() | {"OMP_NUM_THREADS": "1"} | env
    done = run_program([*launcher, *words], cwd=home, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    logs = home / "logs"
    return Output(
        sorted(done.stdout.splitlines()),
        sorted(line for line in done.stderr.splitlines() if re.search(r"\berr \d ", line)),
        {
            re.sub(r"^job_[a-z0-9_]{8}/", "job_RANDOM/", str(path.relative_to(logs))): sorted(
                path.read_text().splitlines()
            )
            for path in logs.rglob("*")
            if path.is_file()
        },
    )


@pytest.mark.parametrize(
    ("options", "env", "shown", "files"),
    [
        (
            [
                "--tee=3",
                "--duplicate-stdout-filters=alpha,be,,ta",
                "--duplicate-stderr-filters=other",
            ],
            {},
            "[default1]:out 1 alpha",
            {"0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log"}
            | {"filtered_stdout.log", "filtered_stderr.log"},
        ),
        (
            [
                "--redirects=0:1,1:2",
                "--tee=1:1",
                "--local-ranks-filter=1",
                "--duplicate-stdout-filters=default",
            ],
            {},
            "[default1]:out 1 alpha",
            {"0/stdout.log", "1/stdout.log", "1/stderr.log", "filtered_stdout.log"},
        ),
        (
            ["--tee=1", "--role=trainer", "--redirects=2"],
            {
                "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank}/${local_rank}> ",
                "PET_DUPLICATE_STDOUT_FILTERS": "gamma",
                "PET_LOCAL_RANKS_FILTER": "0",
            },
            "<trainer 0/0> out 0 alpha",
            {"0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log"}
            | {"filtered_stdout.log"},
        ),
    ],
    ids=["tee", "redirects", "variables"],
)
def test_output_goes_where_torchrun_puts_it(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    options: list[str],
    env: dict[str, str],
    shown: str,
    files: set[str],
    torch_said: Recordings,
    torch_python: str,
) -> None:
    theirs = torch_said(
        "output",
        request.node.callspec.id,
        lambda: launch([torch_python, *TORCHRUN], tmp_path / "theirs", options, env)._asdict(),
    )
    ours = launch(RALLYPOINT, tmp_path / "ours", options, env)
    assert ours._asdict() == theirs
    assert shown in ours.stdout
    assert {path.removeprefix("job_RANDOM/attempt_0/") for path in ours.files} == files
    assert ours.files["job_RANDOM/attempt_0/filtered_stdout.log"]


HOST = socket.gethostname().partition(".")[0]


@pytest.mark.parametrize(
    ("by", "template", "shown"),
    [
        ("flag", "<${hostname} ${rank}> ", f"<{HOST} 1> out 1 alpha"),
        ("variable", "<${hostname}> ", f"<{HOST}> out 1 alpha"),
        ("flag", "", "<old 1> out 1 alpha"),
    ],
    ids=["flag", "variable", "empty"],
)
def test_a_template_of_prefixes_means_what_torchrun_means(
    by: str,
    template: str,
    shown: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    torch_said: Recordings,
    torch_python: str,
) -> None:
    torch_said.need("--log-line-prefix-template")
    options, env = ["--tee=1"], {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<old ${rank}> "}
    if by == "flag":
        options.append(f"--log-line-prefix-template={template}")
    else:
        env["PET_LOG_LINE_PREFIX_TEMPLATE"] = template

    def told(launcher: Sequence[str], name: str) -> list[str]:
        return launch(launcher, tmp_path / name, options, env).stdout

    ours = told(RALLYPOINT, "ours")
    theirs = torch_said(
        "output",
        f"template: {request.node.callspec.id}",
        lambda: [line.replace(HOST, "HOST") for line in told([torch_python, *TORCHRUN], "theirs")],
    )
    assert [line.replace(HOST, "HOST") for line in ours] == theirs
    assert shown in ours
