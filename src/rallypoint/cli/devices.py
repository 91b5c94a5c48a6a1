"""Counts what `--nproc-per-node auto|gpu|xpu|cpu` asks for.

NVIDIA's own library is asked first (milliseconds, no package); where it is missing, the worker's
interpreter is asked once what its torch sees (seconds, but it knows every kind of device).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rallypoint.process.devices import nvml_gpus, visible_gpus

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
        found = len(visible_gpus(environ.get("CUDA_VISIBLE_DEVICES"), uuids))
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


def nvml_uuids() -> tuple[str, ...] | None:
    """The UUIDs of this machine's NVIDIA GPUs; None when nobody tells."""
    gpus = nvml_gpus()
    return None if gpus is None else tuple(gpu.uuid for gpu in gpus)


def _ask_torch(word: str, interpreter: str, environ: Mapping[str, str], ask: Ask) -> int:
    answer = ask(interpreter, _ASK_TORCH[word], environ)
    last = (answer or "").split()[-1:]  # libraries may print before us
    return int(last[0]) if last and last[0].isdecimal() else 0


def _ask(interpreter: str, program: str, environ: Mapping[str, str]) -> str | None:
    from rallypoint.process.devices import ask_interpreter

    return ask_interpreter(interpreter, program, environ, timeout_s=60.0)
