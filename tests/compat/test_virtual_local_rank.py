"""`--virtual-local-rank`: the same under torchrun and here (A13 of the inventory of torchrun)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.launches import Worker, launch, plain_environ

TORCHRUN = ["-m", "torch.distributed.run"]
OURS = ["-m", "rallypoint", "run", "--quiet"]


def shown(worker: Worker) -> dict[str, str | None]:
    """What of a worker's place is virtual, and what is not."""
    names = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_WORLD_SIZE")
    told = {name: worker.env.get(name) for name in names}
    error_file = Path(worker.env["TORCHELASTIC_ERROR_FILE"])
    return told | {"argument": worker.argv[2], "error file": f"{error_file.parent.name}"}


@pytest.mark.parametrize("visible", [None, "4,7", " GPU-a , GPU-b "])
@pytest.mark.parametrize("asked_by", ["flag", "variable"])
def test_both_launchers_say_the_same(tmp_path: Path, visible: str | None, asked_by: str) -> None:
    base = plain_environ()
    base.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        base["CUDA_VISIBLE_DEVICES"] = visible
    options = ["--nproc-per-node", "2"]
    if asked_by == "flag":
        options.append("--virtual-local-rank")
    else:
        base["PET_VIRTUAL_LOCAL_RANK"] = "1"
    theirs = launch([*TORCHRUN, *options], tmp_path / "torchrun", base)
    ours = launch([*OURS, *options], tmp_path / "rallypoint", base)
    assert [shown(worker) for worker in ours] == [shown(worker) for worker in theirs]
    assert [worker.env["LOCAL_RANK"] for worker in ours] == ["0", "0"]
    assert [worker.env["RALLYPOINT_LOCAL_RANK"] for worker in ours] == ["0", "1"]
