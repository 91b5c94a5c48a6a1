"""How many workers `auto` and `gpu` mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import pytest

from rallypoint.cli.machine import count_workers, cpu_count
from rallypoint.process.devices import visible_gpus

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("3,1", 2),
        (" 0 , 2 ", 2),
        ("0,1,-1,2", 2),
        ("0,9,1", 1),
        ("0,x,1", 1),
        ("0,,1", 1),
        ("1,1", 0),
        ("GPU-bb33", 1),
        ("GPU-bb,GPU-cc", 2),
        ("gpu-bb33", 0),
        ("GPU-BB33", 1),
        ("GPU-aa", 0),
        ("GPU-bb33,GPU-zz,GPU-cc44", 1),
        ("2,GPU-bb33", 0),
        ("MIG-1234,MIG-5678", 1),
        ("NoDevFiles", 0),
    ],
)
def test_cuda_visible_devices(visible: str | None, count: int) -> None:
    assert len(visible_gpus(visible, UUIDS)) == count


def test_which_gpus_are_visible_and_in_what_order() -> None:
    assert visible_gpus("3,GPU-aa22", UUIDS) == [3, 1]
    assert visible_gpus(None, UUIDS) == [0, 1, 2, 3]
    assert visible_gpus("MIG-1234", UUIDS) == [None]
    assert visible_gpus("MIG-1234", ()) == []


class Torch:
    """The worker's interpreter, as far as it is asked."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def __call__(self, interpreter: str, program: str, environ: Mapping[str, str]) -> str | None:
        assert interpreter == "python"
        self.asked.append(program)
        return self.answer


def count(word: str, uuids: Sequence[str] | None, torch: Torch, visible: str | None = None) -> int:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return count_workers(word, "python", environ, gpu_uuids=lambda: uuids, ask=torch)


def test_the_driver_answers_without_torch() -> None:
    torch = Torch("9")
    assert count("gpu", UUIDS, torch) == 4
    assert count("auto", UUIDS, torch, "1,2") == 2
    assert torch.asked == []


def test_torch_is_asked_once_when_there_is_no_driver_library() -> None:
    torch = Torch("some library's banner\n3\n")
    assert count("gpu", None, torch) == 3
    assert len(torch.asked) == 1
    assert "torch.cuda" in torch.asked[0]
    assert count("xpu", UUIDS, torch) == 3
    assert "torch.xpu" in torch.asked[1]


@pytest.mark.parametrize("answer", [None, "", "0", "no torch here"])
def test_without_accelerators_auto_is_one_per_cpu_and_gpu_is_none(answer: str | None) -> None:
    assert count("auto", None, Torch(answer)) == cpu_count()
    assert count("gpu", None, Torch(answer)) == 0


def test_hidden_gpus_are_not_used() -> None:
    assert count("auto", UUIDS, Torch("9"), "") == cpu_count()
    assert count("gpu", UUIDS, Torch("9"), "-1") == 0


def test_cpu_is_what_this_process_may_use() -> None:
    assert count("cpu", None, Torch(None)) == len(os.sched_getaffinity(0))
