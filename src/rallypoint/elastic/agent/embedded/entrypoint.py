"""The workers' entrypoint of a library call: a function, a program or a command line."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from rallypoint.config import AffinityMode, FunctionCall, NumaOptions, StartMethod, WorkerConfig
from rallypoint.errors import ParameterError

Entrypoint = Callable[..., Any] | str | Sequence[str] | None


def worker_config(
    entrypoint: Entrypoint,
    args: Sequence[Any],
    workers: WorkerConfig,
    start_method: str | None = None,
) -> WorkerConfig:
    """Return a copy of `workers`, the settings, with their entrypoint, arguments and start method.

    Raises ParameterError for an entrypoint or a start method that can't be used, and UsageError
    for settings that exclude each other.
    """
    function: FunctionCall | None = None
    argv: tuple[str, ...] = ()
    method = _start_method(start_method)
    if callable(entrypoint):
        if method is not StartMethod.FORK:
            _check_importable(entrypoint)
        function = FunctionCall(entrypoint, (tuple(args),) * workers.count)
    else:
        argv = _argv(entrypoint, args)
        method = method if workers.preload else None
    return replace(workers, argv=argv, function=function, start_method=method)


def module_names(preload: Sequence[str]) -> tuple[str, ...]:
    """Return `preload`, the names of modules to import before workers are forked, as a tuple.

    Raises ParameterError for anything but a list of texts.
    """
    if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
        raise ParameterError(
            f"preload={preload!r}: needs names of modules, as in preload=['torch']"
        )
    return tuple(preload)


def entrypoint_name(entrypoint: Entrypoint, args: Sequence[Any] = ()) -> str:
    """Return a short name of the entrypoint, for messages.

    For a function it is the qualified name, for a program the file name without its folder. For a
    Python interpreter it is the first argument that is no option (the script or module, as given),
    or `python -c`.
    """
    if callable(entrypoint):
        return str(getattr(entrypoint, "__qualname__", None) or repr(entrypoint))
    words = [str(word) for word in (*_words(entrypoint), *args)]
    name = os.path.basename(words[0]) if words else ""
    if name.startswith("python"):
        if words[1:2] == ["-c"]:
            return f"{name} -c"
        return next((word for word in words[1:] if not word.startswith("-")), name)
    return name


def _start_method(name: str | None) -> StartMethod | None:
    if name is None:
        return None
    try:
        return StartMethod(name)
    except ValueError:
        known = ", ".join(method.value for method in StartMethod)
        raise ParameterError(f"start_method={name!r}: needs one of {known}") from None


def _check_importable(function: Callable[..., Any]) -> None:
    """Raise ParameterError for a function that was defined in a notebook or at a prompt.

    A worker can't import such a function.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    is_module = getattr(main, "__spec__", None) is not None
    if getattr(function, "__module__", "") != "__main__" or is_module:
        return
    if file is None or not os.path.exists(file):
        raise ParameterError(
            f"the function {entrypoint_name(function)} is defined in a notebook or at a prompt, "
            "which workers can't import: import it from a file, or give start_method='fork'"
        )


def numa_options(options: Any) -> NumaOptions | None:
    """Return Rallypoint's NumaOptions for its own or torch's NumaOptions; None for None.

    Raises ParameterError for any other object.
    """
    if options is None:
        return None
    try:
        mode = AffinityMode(options.affinity_mode)
        return NumaOptions(mode, bool(options.should_fall_back_if_binding_fails))
    except (AttributeError, ValueError):
        modes = ", ".join(AffinityMode)
        raise ParameterError(
            f"numa_options={options!r:.80}: needs a NumaOptions with a mode of {modes}"
        ) from None


def _words(entrypoint: Entrypoint) -> tuple[Any, ...]:
    if isinstance(entrypoint, str | os.PathLike):
        return (entrypoint,) if entrypoint else ()
    return tuple(entrypoint) if isinstance(entrypoint, list | tuple) else ()


def _argv(entrypoint: Entrypoint, args: Sequence[Any]) -> tuple[str, ...]:
    words = _words(entrypoint)
    if not words:
        raise ParameterError(
            f"the entrypoint {entrypoint!r:.80}: needs a function, a program, or a command line "
            "as a tuple"
        )
    argv = tuple(_word(word) for word in (*words, *args))
    if shutil.which(argv[0]) is None:
        raise ParameterError(
            f"the program {argv[0]!r}: there is none that can be run; give its path"
        )
    return argv


def _word(word: Any) -> str:
    if isinstance(word, str | os.PathLike):
        return os.fsdecode(word)
    if isinstance(word, int | float) and not isinstance(word, bool):
        return str(word)
    raise ParameterError(
        f"the argument {word!r:.80} of a command line: needs a text, a path or a number"
    )
