"""NVIDIA's GPUs by NVIDIA's own library (milliseconds, no package).

Also the questions to another interpreter or program. `cli/accelerators.py` counts those of all
makers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from rallypoint.config import is_secret


class Gpu(Struct, frozen=True):
    """One GPU: its UUID and its PCI address, as in /sys/bus/pci/devices."""

    uuid: str
    pci_address: str
    """The PCI address; empty if the library does not know it."""


def has_nvml() -> bool:
    """Return whether libnvidia-ml, which comes with the driver, can be loaded."""
    return _nvml() is not None


def _nvml() -> Any:
    import ctypes

    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None


def nvml_gpus() -> tuple[Gpu, ...] | None:
    """Return the GPUs that NVIDIA's libnvidia-ml lists, in its order.

    None: there is no such library, or no driver answers it.
    """
    import ctypes

    nvml = _nvml()
    if nvml is None or nvml.nvmlInit_v2() != 0:
        return None
    try:
        count = ctypes.c_uint()
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return None
        found = []
        for index in range(count.value):
            device, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) != 0:
                continue  # fallen off the bus: CUDA doesn't count it either
            nvml.nvmlDeviceGetUUID(device, text, len(text))
            found.append(Gpu(text.value.decode("ascii", "replace"), _pci_address(nvml, device)))
        return tuple(found)
    finally:
        nvml.nvmlShutdown()


def visible_gpus(visible: str | None, uuids: Sequence[str]) -> list[int | None]:
    """Return the GPUs, by index, that a CUDA program sees under this value of CUDA_VISIBLE_DEVICES.

    CUDA's rules: unset shows all. Entries are indices (`0 1` is 0: what follows the digits does not
    count) or unique beginnings of UUIDs. The list ends at the first entry that names nothing (`-1`
    is the usual way to say so). Naming a GPU twice shows none. A MIG instance as the first entry is
    the only one seen; it is None here, because its UUID does not tell which GPU it is a part of. A
    later one ends the list.
    """
    if visible is None:
        return list(range(len(uuids)))
    seen: list[int | None] = []
    for entry in visible.split(","):
        word = entry.strip()
        if word.startswith("MIG-"):
            if not seen and uuids:
                seen.append(None)
            return seen
        index = _index(word, uuids)
        if index is None:
            break
        if index in seen:
            return []
        seen.append(index)
    return seen


def _index(word: str, uuids: Sequence[str]) -> int | None:
    if number := re.match(r"\+?(\d{1,9})", word, re.ASCII):
        return index if (index := int(number[1])) < len(uuids) else None
    if not word.startswith("GPU-"):
        return None
    fits = [index for index, uuid in enumerate(uuids) if uuid.lower().startswith(word.lower())]
    return fits[0] if len(fits) == 1 else None


def _pci_address(nvml: object, device: object) -> str:
    import ctypes

    class PciInfo(ctypes.Structure):
        """The library's struct nvmlPciInfo_t."""

        _fields_ = (
            ("bus_id_legacy", ctypes.c_char * 16),
            ("domain", ctypes.c_uint),
            ("bus", ctypes.c_uint),
            ("device", ctypes.c_uint),
            ("pci_device_id", ctypes.c_uint),
            ("pci_subsystem_id", ctypes.c_uint),
            ("bus_id", ctypes.c_char * 32),
        )

    ask = getattr(nvml, "nvmlDeviceGetPciInfo_v3", None)
    info = PciInfo()
    if ask is None or ask(device, ctypes.byref(info)) != 0:
        return ""
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"


def ask_interpreter(
    interpreter: str, program: str, environ: Mapping[str, str], *, timeout_s: float
) -> str | None:
    """Return the stdout of `interpreter -c program`; None if it fails or takes too long.

    Like `ask_program`, it blocks for up to `timeout_s` seconds.
    """
    return ask_program([interpreter, "-c", program], environ, timeout_s=timeout_s)


def ask_program(
    command: Sequence[str], environ: Mapping[str, str], *, timeout_s: float
) -> str | None:
    """Return the stdout of a program; None if it can't run, fails or takes too long.

    Blocks for up to `timeout_s` seconds; leaves no process of its group behind; safe to retry. The
    program gets the variables of `environ` without secrets; its stderr is thrown away.
    """
    shown = {name: value for name, value in environ.items() if not is_secret(name)}
    try:
        program = subprocess.Popen(
            command,
            env=shown,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    with program:
        try:
            said, _ = program.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # A shell may have started more.
                os.killpg(program.pid, signal.SIGKILL)
    return said.decode("utf-8", "replace") if program.returncode == 0 else None
