"""Counts what `--nproc-per-node auto|gpu|xpu|cpu` asks for.

NVIDIA's own library is asked first (milliseconds, no package); where it is missing, the worker's
interpreter is asked once what its torch sees (seconds, but it knows every kind of device).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

GpuUuids = Callable[[], Sequence[str] | None]
"""The UUIDs of this machine's NVIDIA GPUs; None when the library is missing or fails."""

Ask = Callable[[str, str, Mapping[str, str]], str | None]
"""(interpreter, program, environment) -> what the program printed, or None if it failed."""

_ASK_TORCH = {
    "gpu": "import torch; print(torch.cuda.device_count())",
    "xpu": "import torch; print(torch.xpu.device_count())",
    "auto": "import torch; print(torch.accelerator.device_count())",
}


def count_workers(
    word: str,
    interpreter: str,
    environ: Mapping[str, str],
    gpu_uuids: GpuUuids | None = None,
    ask: Ask | None = None,
) -> int:
    """How many workers `word` means here; 0 when there is no such device.

    `auto` is one per accelerator, or per CPU when there is none. Blocks up to a minute when torch
    must be asked.
    """
    if word == "cpu":
        return cpu_count()
    uuids = None if word == "xpu" else (gpu_uuids or nvml_uuids)()
    if uuids:
        found = visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"), uuids)
    elif uuids is None or word == "auto":
        found = _ask_torch(word, interpreter, environ, ask or _ask)
    else:
        found = 0
    return cpu_count() if word == "auto" and found == 0 else found


def cpu_count() -> int:
    """The CPUs that this process may run on (containers and schedulers limit them)."""
    import os

    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def visible_gpus(visible: str | None, uuids: Sequence[str]) -> int:
    """How many GPUs a CUDA program sees under this value of CUDA_VISIBLE_DEVICES.

    CUDA's rules: unset shows all; entries are indices or (unique beginnings of) UUIDs; the list
    ends at the first entry that names nothing (`-1` is the usual way to say so); naming a GPU
    twice shows none; of MIG instances a program sees one, whatever the list says.
    """
    if visible is None:
        return len(uuids)
    seen: set[int] = set()
    for entry in visible.split(","):
        word = entry.strip()
        if word.startswith("MIG-"):
            return len(seen) or min(1, len(uuids))
        index = _index(word, uuids)
        if index is None:
            break
        if index in seen:
            return 0
        seen.add(index)
    return len(seen)


def _index(word: str, uuids: Sequence[str]) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word) if int(word) < len(uuids) else None
    if not word.startswith("GPU-"):
        return None
    fits = [index for index, uuid in enumerate(uuids) if uuid.lower().startswith(word.lower())]
    return fits[0] if len(fits) == 1 else None


def nvml_uuids() -> tuple[str, ...] | None:
    """Asks libnvidia-ml, which comes with the driver. None: no driver, or it doesn't answer."""
    import ctypes

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
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
            found.append(text.value.decode("ascii", "replace"))
        return tuple(found)
    finally:
        nvml.nvmlShutdown()


def _ask_torch(word: str, interpreter: str, environ: Mapping[str, str], ask: Ask) -> int:
    answer = ask(interpreter, _ASK_TORCH[word], environ)
    last = (answer or "").split()[-1:]  # libraries may print before us
    return int(last[0]) if last and last[0].isdecimal() else 0


def _ask(interpreter: str, program: str, environ: Mapping[str, str]) -> str | None:
    from rallypoint.process.ask import ask_interpreter

    return ask_interpreter(interpreter, program, environ, timeout_s=60.0)
