"""`--virtual-local-rank`: the same under torchrun and here (A13 of the inventory of torchrun)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.launches import RALLYPOINT, TORCHRUN, Worker, launch, plain_environ
from tests.compat.recordings import Recordings

HIP = "HIP_VISIBLE_DEVICES"


def shown(worker: Worker) -> dict[str, str | None]:
    """What of a worker's place is virtual, and what is not."""
    names = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_WORLD_SIZE")
    told = {name: worker.env.get(name) for name in names}  # None: it is the launcher's own
    error_file = Path(worker.env["TORCHELASTIC_ERROR_FILE"])
    return told | {"argument": worker.argv[2], "error file": f"{error_file.parent.name}"}


@pytest.mark.parametrize("visible", [None, "4,7", " GPU-a , GPU-b "])
@pytest.mark.parametrize("asked_by", ["flag", "variable"])
def test_both_launchers_say_the_same(
    tmp_path: Path,
    visible: str | None,
    asked_by: str,
    torch_said: Recordings,
    torch_python: str,
) -> None:
    base = plain_environ()
    if visible is not None:
        base["CUDA_VISIBLE_DEVICES"] = visible
    options = ["--nproc-per-node", "2"]
    if asked_by == "flag":
        options.append("--virtual-local-rank")
    else:
        base["PET_VIRTUAL_LOCAL_RANK"] = "1"

    def ask() -> object:
        words = [torch_python, *TORCHRUN, *options]
        return [shown(worker) for worker in launch(words, tmp_path / "torchrun", base)]

    theirs = torch_said("virtual_local_rank", f"{asked_by}, visible: {visible}", ask)
    ours = launch([*RALLYPOINT, "--quiet", *options], tmp_path / "rallypoint", base)
    assert [shown(worker) for worker in ours] == theirs
    assert [worker.env["LOCAL_RANK"] for worker in ours] == ["0", "0"]
    assert [worker.env["RALLYPOINT_LOCAL_RANK"] for worker in ours] == ["0", "1"]


def test_the_list_of_hip_wins_with_both(
    tmp_path: Path, torch_said: Recordings, torch_python: str
) -> None:
    torch_said.need(HIP)
    base = plain_environ() | {HIP: "3,5", "CUDA_VISIBLE_DEVICES": "1,2"}
    options = ["--nproc-per-node", "2", "--virtual-local-rank"]

    def told(launcher: list[str], name: str) -> list[dict[str, str | None]]:
        workers = launch([*launcher, *options], tmp_path / name, base)
        return [shown(w) | {HIP: w.env.get(HIP)} for w in workers]

    theirs = torch_said(
        "virtual_local_rank", "hip", lambda: told([torch_python, *TORCHRUN], "torchrun")
    )
    ours = told([*RALLYPOINT, "--quiet"], "rallypoint")
    assert ours == theirs
    assert [worker[HIP] for worker in ours] == ["3", "5"]
    assert [worker["CUDA_VISIBLE_DEVICES"] for worker in ours] == ["3", "5"]
