"""How many workers `auto` and `gpu` mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rallypoint.cli.accelerators import Nvidia, look
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
        ("0 1", 1),
        ("0;1,2", 2),
        ("+1,2gpu\r", 2),
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

    def __init__(self, answer: str | None = "9") -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.told: list[str] = []

    def __call__(self, interpreter: str, program: str, environ: Mapping[str, str]) -> str | None:
        assert interpreter == "python"
        assert self.told, "a person waits without a word"
        self.asked.append(program)
        return self.answer


MISSING = Nvidia(state="is missing")
OF_FOUR = Nvidia(UUIDS)


def count(word: str, nvidia: Nvidia, torch: Torch, root: Path, **environ: str) -> int:
    return count_workers(word, "python", environ, torch.told.append, nvidia, torch, str(root))


def make(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def amd(root: Path, gpus: int) -> None:
    """A processor, and so many GPUs."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    make(root, {"dev/kfd": "", f"{nodes}/0/gpu_id": "0\n", f"{nodes}/0/properties": "cpu_cores 8"})
    for number in range(1, gpus + 1):
        told = f"simd_count 304\nunique_id {0xA0 + number}\ndrm_render_minor {127 + number}\n"
        make(
            root,
            {
                f"{nodes}/{number}/gpu_id": "51170\n",
                f"{nodes}/{number}/properties": told,
                f"dev/dri/renderD{127 + number}": "",
            },
        )


def intel(root: Path, slots: Sequence[str], tiles: str = "tile{}", each: int = 1) -> None:
    for number, slot in enumerate(slots, start=128):
        device = f"sys/class/drm/renderD{number}/device"
        make(
            root,
            {
                f"{device}/vendor": "0x8086\n",
                f"{device}/uevent": f"DRIVER=xe\nPCI_SLOT_NAME={slot}\n",
                f"dev/dri/renderD{number}": "",
            }
            | {f"{device}/{tiles.format(tile)}/id": "" for tile in range(each)},
        )


CARDS = ("0000:4d:00.0", "0000:9a:00.0")


def test_the_driver_answers_without_torch(tmp_path: Path) -> None:
    torch = Torch()
    assert count("gpu", OF_FOUR, torch, tmp_path) == 4
    assert count("auto", OF_FOUR, torch, tmp_path, CUDA_VISIBLE_DEVICES="1,2") == 2
    assert torch.asked == []


def test_without_accelerators_auto_is_one_per_cpu_and_the_others_are_none(tmp_path: Path) -> None:
    torch = Torch()
    make(tmp_path, {"dev/null": "", "dev/dri/card0": "", "dev/nvram": "", "dev/nvme0": ""})
    assert count("auto", MISSING, torch, tmp_path) == cpu_count()
    assert count("gpu", MISSING, torch, tmp_path) == 0
    assert count("xpu", MISSING, torch, tmp_path) == 0
    assert torch.asked == [], "nobody waits for torch where there is nothing"


def test_hidden_gpus_are_not_used(tmp_path: Path) -> None:
    torch = Torch()
    assert count("auto", OF_FOUR, torch, tmp_path, CUDA_VISIBLE_DEVICES="") == cpu_count()
    assert count("gpu", OF_FOUR, torch, tmp_path, CUDA_VISIBLE_DEVICES="-1") == 0
    assert torch.asked == []


def test_gpus_of_a_container_without_the_library_of_the_driver_are_counted(tmp_path: Path) -> None:
    make(tmp_path, {f"dev/nvidia{number}": "" for number in (0, 1, 10)})
    make(tmp_path, {"dev/nvidiactl": "", "dev/nvidia-uvm": "", "dev/nvidia-caps/nvidia-cap1": ""})
    told = "Model: \t\t H100\nGPU UUID: \t GPU-bb33\nDevice Minor: \t 1\n"
    make(tmp_path, {"proc/driver/nvidia/gpus/0000:1b:00.0/information": told})
    torch = Torch()
    assert count("gpu", MISSING, torch, tmp_path) == 3
    assert count("auto", MISSING, torch, tmp_path, CUDA_VISIBLE_DEVICES="2,0") == 2
    assert count("gpu", MISSING, torch, tmp_path, CUDA_VISIBLE_DEVICES="GPU-bb33") == 1
    assert count("gpu", MISSING, torch, tmp_path, CUDA_VISIBLE_DEVICES="GPU-cc") == 0
    assert torch.asked == []


def test_gpus_that_slurm_keeps_from_a_step_are_not_counted(tmp_path: Path) -> None:
    """Their nodes are there, but can't be opened: here a directory."""
    make(tmp_path, {"dev/nvidia0": "", "dev/nvidia1/other": ""})
    assert count("gpu", MISSING, Torch(), tmp_path) == 1


@pytest.mark.parametrize(
    ("environ", "gpus"),
    [
        ({}, 4),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000a1"}, 1),
        ({"HIP_VISIBLE_DEVICES": "0,3"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 1),
        ({"HIP_VISIBLE_DEVICES": "0,1,2", "CUDA_VISIBLE_DEVICES": "0"}, 3),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1,2,3"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "3"}, 0),
        ({"HIP_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_gpus_of_amd_are_counted_as_rocm_shows_them(
    tmp_path: Path, environ: dict[str, str], gpus: int
) -> None:
    amd(tmp_path, 4)
    torch = Torch()
    assert count("gpu", MISSING, torch, tmp_path, **environ) == gpus
    assert count("auto", MISSING, torch, tmp_path, **environ) == (gpus or cpu_count())
    assert torch.asked == []


def test_gpus_of_amd_that_a_container_was_not_given_are_not_counted(tmp_path: Path) -> None:
    amd(tmp_path, 4)
    (tmp_path / "dev/dri/renderD129").unlink()
    assert count("gpu", MISSING, Torch(), tmp_path) == 3
    (tmp_path / "dev/kfd").unlink()
    assert count("gpu", MISSING, Torch(), tmp_path) == 0


@pytest.mark.parametrize(
    ("environ", "xpus"),
    [
        ({}, 4),
        ({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, 2),
        ({"ZE_AFFINITY_MASK": "0,3"}, 2),
        ({"ZE_AFFINITY_MASK": "7"}, 0),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"}, 4),
    ],
)
@pytest.mark.parametrize("tiles", ["tile{}", "drm/card0/gt/gt{}"])
def test_gpus_of_intel_are_counted_by_their_tiles(
    tmp_path: Path, environ: dict[str, str], xpus: int, tiles: str
) -> None:
    intel(tmp_path, CARDS, tiles, each=2)
    torch = Torch()
    assert count("xpu", MISSING, torch, tmp_path, **environ) == xpus
    assert count("auto", MISSING, torch, tmp_path, **environ) == (xpus or cpu_count())
    assert count("gpu", MISSING, torch, tmp_path, **environ) == 0
    assert torch.asked == []


def test_a_card_of_intel_counts_once_where_no_tile_is_told(tmp_path: Path) -> None:
    intel(tmp_path, [*CARDS, "0000:00:02.0"], each=0)
    assert count("auto", MISSING, Torch(), tmp_path) == 2


def test_the_graphics_of_a_laptop_are_no_accelerator(tmp_path: Path) -> None:
    intel(tmp_path, ["0000:00:02.0"])
    torch = Torch()
    assert count("auto", MISSING, torch, tmp_path) == cpu_count()
    assert torch.asked == []


@pytest.mark.parametrize(
    ("word", "nvidia", "files", "environ", "module"),
    [
        ("gpu", Nvidia(state="fails"), {}, {}, "torch.cuda"),
        ("auto", Nvidia(state="fails"), {}, {}, "torch.accelerator"),
        ("gpu", MISSING, {"dev/dxg": ""}, {}, "torch.cuda"),
        ("auto", MISSING, {"dev/nvhost-gpu": ""}, {}, "torch.accelerator"),
        ("auto", MISSING, {"dev/davinci0": ""}, {}, "torch.accelerator"),
        ("auto", MISSING, {"dev/accel/accel0": ""}, {}, "torch.accelerator"),
        ("xpu", MISSING, {"cards": ""}, {"ZE_AFFINITY_MASK": "0.1"}, "torch.xpu"),
        ("auto", MISSING, {"cards": ""}, {"ONEAPI_DEVICE_SELECTOR": "cuda:0"}, "torch.acc"),
        ("xpu", MISSING, {"laptop": "", "usr/lib/x/libze_loader.so.1": ""}, {}, "torch.xpu"),
    ],
)
def test_torch_is_asked_where_only_torch_can_tell_and_that_is_said_before(
    tmp_path: Path,
    word: str,
    nvidia: Nvidia,
    files: dict[str, str],
    environ: dict[str, str],
    module: str,
) -> None:
    make(tmp_path, files)
    if "cards" in files or "laptop" in files:
        intel(tmp_path, CARDS if "cards" in files else ["0000:00:02.0"])
    torch = Torch("some library's banner\n3\n")
    assert count(word, nvidia, torch, tmp_path, **environ) == 3
    assert module in torch.asked[0]
    (line,) = torch.told
    assert line.startswith(
        f"--nproc-per-node {word}: asking torch for the devices, which takes seconds: "
    )


@pytest.mark.parametrize("answer", [None, "", "0", "no torch here"])
def test_a_torch_that_sees_nothing_leaves_the_cpus(tmp_path: Path, answer: str | None) -> None:
    fails = Nvidia(state="fails")
    assert count("auto", fails, Torch(answer), tmp_path) == cpu_count()
    assert count("gpu", fails, Torch(answer), tmp_path) == 0


def test_torch_is_asked_on_another_system() -> None:
    assert look("auto", {}, MISSING, system="darwin").ask_why == "this system is not Linux"


def test_cpu_is_what_this_process_may_use(tmp_path: Path) -> None:
    assert count("cpu", MISSING, Torch(), tmp_path) == len(os.sched_getaffinity(0))
