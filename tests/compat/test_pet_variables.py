"""Every option may be a `PET_*` variable: the same ones mean the same to both launchers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.launches import (
    RALLYPOINT,
    TORCHRUN,
    as_json,
    comparable,
    launch,
    of_json,
    plain_environ,
)
from tests.compat.recordings import Recordings
from tests.harness.cluster import free_port

JOB = {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "3", "PET_ROLE": "trainer"}


def pet_variables(how: str, port: int) -> dict[str, str]:
    """Those of one job of two workers."""
    return (
        JOB
        | {
            "alone": {"PET_STANDALONE": "1"},
            "static": {
                "PET_NNODES": "1",
                "PET_NODE_RANK": "0",
                "PET_MASTER_ADDR": "127.0.0.1",
                "PET_MASTER_PORT": str(port),
                "PET_RDZV_ID": "train-7",
            },
            "elastic": {
                "PET_NNODES": "1:1",
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
                "PET_RDZV_ID": "train-7",
            },
        }[how]
    )


@pytest.mark.parametrize("options", [(), ("--max-restarts=1", "--role=judge")], ids=["", "beaten"])
@pytest.mark.parametrize("how", ["alone", "static", "elastic"])
def test_pet_variables_tell_workers_what_torchrun_would(
    how: str,
    options: tuple[str, ...],
    tmp_path: Path,
    torch_said: Recordings,
    torch_python: str,
) -> None:
    base = plain_environ() | pet_variables(how, free_port())

    def ask() -> object:
        words = [torch_python, *TORCHRUN, *options]
        workers = launch(words, tmp_path / "theirs", base)
        for worker in workers:
            if how == "static":
                assert worker.env["MASTER_PORT"] == base["PET_MASTER_PORT"]
            if how == "alone":
                worker.env["TORCHELASTIC_RUN_ID"] = "run"
            del worker.env["MASTER_PORT"]
        return as_json(workers)

    question = " ".join([how, *options])
    theirs = of_json(torch_said("pet_variables", question, ask))
    token = {"RALLYPOINT_TOKEN": "5ec2e7" * 8}
    ours = launch([*RALLYPOINT, *options], tmp_path / "ours", base, token)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.argv == other.argv
        fixed = how == "static"
        if fixed:
            assert mine.env.pop("MASTER_PORT") == base["PET_MASTER_PORT"]
        assert comparable(mine.env, fixed=fixed) == comparable(other.env, fixed=fixed)
        if how != "alone":
            assert mine.env["TORCHELASTIC_RUN_ID"] == other.env["TORCHELASTIC_RUN_ID"] == "train-7"
        # What no launcher does by itself: the variables had an effect, on both.
        budget, role = ("1", "judge") if options else ("3", "trainer")
        assert (mine.env["TORCHELASTIC_MAX_RESTARTS"], mine.env["ROLE_NAME"]) == (budget, role)
        assert mine.env["LOCAL_WORLD_SIZE"] == "2"
