"""The number of accelerators that a program would see, without importing torch.

They are counted through NVIDIA's library, and through /dev, /proc and /sys. The variables that hide
devices have the meaning that each maker's libraries give them. If the kernel shows devices of
another kind, torch is asked. `root` is / except in tests.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from rallypoint.core.text import shown
from rallypoint.files import open_named
from rallypoint.process.devices import has_nvml, nvml_gpus, visible_gpus

_NVIDIA = re.compile(r"nvidia\d+")
_NEEDED_BY_CUDA = ("dxg", "nvhost-gpu", "nvgpu")
"""The names of devices under /dev that CUDA uses where NVIDIA's library may be missing: WSL, and
boards with a Tegra."""
_OF_OTHER_MAKERS = re.compile(r"accel\d*|hl\d+|davinci\d+|mtia\d+|cambricon_dev\d+")
_INTEL = "0x8086"
_ON_THE_CPU = "0000:00:"
"""The beginning of the PCI address of a GPU that is a part of the processor."""
_LOADERS = ("usr/lib/*/libze_loader.so.1", "usr/lib*/libze_loader.so.1", "usr/local/lib/libze_lo*")
_ALL_OF_INTEL = frozenset({"", "*:gpu", "level_zero:*", "level_zero:gpu", "gpu"})


class Nvidia(Struct, frozen=True):
    """The answer of NVIDIA's library (NVML): the GPUs' UUIDs, or why they are unknown."""

    uuids: tuple[str, ...] = ()
    state: Literal["answers", "fails", "is missing"] = "answers"


class Sight(Struct, frozen=True):
    """The number of devices that a program sees, or the reason to ask torch for it."""

    count: int = 0
    ask_why: str = ""


def ask_nvidia() -> Nvidia:
    """Ask NVIDIA's library (NVML) for the GPUs. Blocks for as long as the driver takes."""
    gpus = nvml_gpus()
    if gpus is not None:
        return Nvidia(tuple(gpu.uuid for gpu in gpus))
    return Nvidia(state="fails" if has_nvml() else "is missing")


def look(
    word: str, environ: Mapping[str, str], nvidia: Nvidia, root: str = "/", system: str = ""
) -> Sight:
    """Return the number of devices that `gpu`, `xpu` or `auto` means, or why to ask torch for it.

    Those that `environ` hides from a program don't count. `nvidia` is the answer of NVIDIA's
    library. `system`, if not empty, stands for the value of `sys.platform`.
    """
    if (system or sys.platform) != "linux":
        return Sight(ask_why="this system is not Linux")
    base = Path(root)
    if word != "xpu" and (seen := _gpus(environ, nvidia, base)) is not None:
        return seen
    if word != "gpu" and (seen := _xpus(environ, base)) is not None:
        return seen
    return _other(word, base)


def _other(word: str, base: Path) -> Sight:
    found = [] if word == "xpu" else [name for name in _NEEDED_BY_CUDA if _is_there(base, name)]
    if word == "auto":
        places = (base / "dev", base / "dev/accel")
        found += [name for place in places for name in _names(place) if _is_other(place, name)]
    return Sight(ask_why=f"this machine has a device /dev/{found[0]}") if found else Sight()


def _is_there(base: Path, name: str) -> bool:
    return (base / "dev" / name).exists()


def _is_other(place: Path, name: str) -> bool:
    return _OF_OTHER_MAKERS.fullmatch(name) is not None and not (place / name).is_dir()


# NVIDIA and AMD: what torch calls cuda


def _gpus(environ: Mapping[str, str], nvidia: Nvidia, base: Path) -> Sight | None:
    """Return how many GPUs of NVIDIA, or else of AMD, a program sees, or why to ask torch.

    None: this process finds none of either.
    """
    if nvidia.state == "fails":
        return Sight(ask_why="NVIDIA's library can't reach its driver")
    uuids = nvidia.uuids
    if nvidia.state == "is missing":  # As in a container that was given compute, but not utility.
        uuids = tuple(_nvidia_nodes(base))
    if uuids:
        return Sight(len(visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"), uuids)))
    amd = list(_amd_gpus(base))
    return Sight(len(_visible_to_hip(environ, amd))) if amd else None


def _nvidia_nodes(base: Path) -> Iterator[str]:
    """Yield the UUIDs of the NVIDIA devices that this process may open, in order of PCI address.

    One whose UUID is unknown is given by the name of its device node, like `nvidia0`.
    """
    known = {}
    for place in _names(base / "proc/driver/nvidia/gpus"):
        told = _pairs(base / "proc/driver/nvidia/gpus" / place / "information", ":")
        known[f"nvidia{told.get('Device Minor', '')}"] = told.get("GPU UUID", "")
    nodes = [name for name in _names(base / "dev") if _NVIDIA.fullmatch(name)]
    order = [*known, *(name for name in nodes if name not in known)]
    for name in order:
        if name in nodes and _may_be_opened(base / "dev" / name):
            yield known.get(name) or name


def _amd_gpus(base: Path) -> Iterator[str]:
    """Yield the UUIDs of AMD's GPUs that this process may use, in the order of ROCm."""
    nodes = base / "sys/class/kfd/kfd/topology/nodes"
    if not os.access(base / "dev/kfd", os.R_OK | os.W_OK):
        return
    for node in sorted(filter(str.isdecimal, _names(nodes)), key=int):
        if _text(nodes / node / "gpu_id") in ("", "0"):
            continue  # A CPU, or not of this container.
        told = _pairs(nodes / node / "properties", " ")
        if (base / f"dev/dri/renderD{told.get('drm_render_minor', '')}").exists():
            unique = told.get("unique_id", "0")
            yield f"GPU-{int(unique) if unique.isdecimal() else 0:016x}"


def _visible_to_hip(environ: Mapping[str, str], uuids: Sequence[str]) -> list[str]:
    """Return the UUIDs of AMD's GPUs that a program sees, of these.

    ROCR_VISIBLE_DEVICES comes first. What it leaves is numbered anew for HIP_VISIBLE_DEVICES, or
    else CUDA_VISIBLE_DEVICES.
    """
    for names in (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")):
        visible = next((environ[name] for name in names if name in environ), None)
        uuids = [uuids[index] for index in visible_gpus(visible, uuids) if index is not None]
    return list(uuids)


# Intel: what torch calls xpu


def _xpus(environ: Mapping[str, str], base: Path) -> Sight | None:
    """Return how many of Intel's GPUs or tiles a program sees, or why to ask torch.

    None: there is no GPU of Intel, or only that of a processor, without Level Zero's loader.
    """
    places = [base / "sys/class/drm" / name / "device" for name in _names(base / "sys/class/drm")]
    cards, on_the_cpu = [], False
    for place in places:
        node = place.parent.name
        if not node.startswith("renderD") or _text(place / "vendor") != _INTEL:
            continue
        if not (base / "dev/dri" / node).exists():
            continue
        if _pairs(place / "uevent", "=").get("PCI_SLOT_NAME", "").startswith(_ON_THE_CPU):
            on_the_cpu = True
        else:
            cards.append(place)
    if not cards:
        # Most programs have no use for it, and torch counts it only if it was built for that.
        has_loader = on_the_cpu and any(any(base.glob(pattern)) for pattern in _LOADERS)
        return Sight(ask_why="the GPU of an Intel processor is there") if has_loader else None
    mask = environ.get("ZE_AFFINITY_MASK", "")
    selector = environ.get("ONEAPI_DEVICE_SELECTOR", "")
    if "." in mask:
        return Sight(ask_why=f"ZE_AFFINITY_MASK={shown(mask)} names tiles")
    if selector not in _ALL_OF_INTEL:
        return Sight(ask_why=f"ONEAPI_DEVICE_SELECTOR={shown(selector)} is set")
    whole = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE"
    devices = len(cards) if whole else sum(map(_tiles, cards))
    if not mask:
        return Sight(devices)
    words = {word.strip() for word in mask.split(",")}
    return Sight(sum(word.isdecimal() and int(word) < devices for word in words))


def _tiles(card: Path) -> int:
    """Return the number of tiles of a card of Intel; 1 if the driver shows none."""
    by_xe = [*card.glob("tile[0-9]*")]
    return len(by_xe or [*card.glob("drm/card*/gt/gt[0-9]*")]) or 1


# Small files


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _text(path: Path) -> str:
    """Return the text of a file; empty if it can't be read, as often in a container."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _pairs(path: Path, between: str) -> dict[str, str]:
    """Return a file's lines as names with values; `between` stands between the two."""
    lines = (line.partition(between) for line in _text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _may_be_opened(path: Path) -> bool:
    """Return whether this process can open the device: Slurm or a container may forbid it."""
    try:
        os.close(open_named(str(path), os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True
