"""The obstacles to forking a process that has imported big libraries.

A fork copies the calling thread only. A thread of Python's may hold any lock; a CUDA context can't
be used in the child. A native pool is rebuilt by its library, if that was written for it. Runs in
the prepared process: needs the standard library only.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping

_CUDA_DEVICE = "/dev/nvidia-uvm"
_OPENBLAS_PREFIXES, _OPENBLAS_SUFFIXES = ("", "scipy_"), ("", "64_", "_64", "_64_")
_PTHREADS = 1
_MOMENTS, _MOMENT_S = 5, 0.01


def python_threads() -> list[str]:
    """Return the names of Python's threads except the main one.

    Those that were started without the module `threading` are included. If the kernel knows more
    threads, it waits for up to 50 ms for those that have just begun.
    """
    for _ in range(_MOMENTS):
        if (found := _known_to_python()) or not native_threads():
            break
        time.sleep(_MOMENT_S)
    return found


def _known_to_python() -> list[str]:
    here = threading.main_thread().ident
    known = {thread.ident: thread.name for thread in threading.enumerate()}
    return [known.get(i, "a thread without a name") for i in sys._current_frames() if i != here]


def native_threads() -> list[str]:
    """Return the kernel's names of all threads except the first, Python's included."""
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    names.append(file.read().strip())
            except OSError:
                continue  # It has just ended.
    return names


def cuda_is_initialised() -> bool:
    """Return whether this process has initialised CUDA, by torch or otherwise."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}") == _CUDA_DEVICE:
                return True
        except OSError:
            continue
    return False


def give_openblas_its_threads(environ: Mapping[str, str]) -> None:
    """Set the number of OpenBLAS's threads in a worker, as if it had been loaded there.

    In the prepared process it was kept at one, at which it starts none.
    """
    for path in _loaded_openblas():
        _set_openblas_threads(path, environ)


def reseed() -> None:
    """Seed numpy's global generator anew in a worker, if numpy is imported.

    It was seeded when it was imported; each worker would draw the same numbers. (Python's own is
    seeded anew by every fork, torch's always begins the same.)
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _loaded_openblas() -> list[str]:
    found = set()
    with open("/proc/self/maps", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if "openblas" in path.rpartition("/")[2]:
                found.add("/" + path)
    return sorted(found)


def _set_openblas_threads(path: str, environ: Mapping[str, str]) -> None:
    import ctypes

    library = ctypes.CDLL(path)
    for prefix in _OPENBLAS_PREFIXES:
        for suffix in _OPENBLAS_SUFFIXES:
            try:
                functions = [
                    library[f"{prefix}openblas_{name}{suffix}"]
                    for name in ("get_parallel", "get_num_procs", "set_num_threads")
                ]
            except AttributeError:
                continue
            get_parallel, get_num_procs, set_num_threads = functions
            if get_parallel() == _PTHREADS:
                set_num_threads(_wanted(environ, get_num_procs()))
            return


def _wanted(environ: Mapping[str, str], processors: int) -> int:
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        given = environ.get(name, "").partition(",")[0].strip()
        if given.isdecimal() and int(given) > 0:
            return min(int(given), processors)
    return processors
