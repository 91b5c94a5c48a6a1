"""Programs under `rallypoint shim` that call torch's launcher in their own process.

`accelerate launch` and `fabric run` do. When such a program imports `torch.distributed.run`,
`.launch` or `.launcher`, it gets a module of that name with what `rallypoint.elastic` has in the
module of the same path. In the functions that run a job, the environment is without the shim, so
that workers do not inherit it, and a failure is also a `ChildFailedError` of torch. A `main` whose
command line has an option that only torch knows hands over to torch's own modules, for good.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rallypoint.cli.options import RUN
from rallypoint.cli.parser import HelpRequested, UnknownOptionError, parse
from rallypoint.cli.shim.environ import left
from rallypoint.core.text import shown
from rallypoint.elastic.launcher import api as launcher
from rallypoint.errors import ChildFailedError, UsageError
from rallypoint.observe.printing import print_error

_TORCH, _OURS = "torch.distributed", "rallypoint.elastic"
_OF_TORCH = "torch.distributed.elastic.multiprocessing.errors"
_NAMES = ("run", "launch", "launcher", "launcher.api")
_handed_over: list[str] = []
"""The names of modules whose `main` has handed over to torch's; empty: none has."""


def spec_of(name: str) -> ModuleSpec | None:
    """Return the spec of a module that replaces torch's of this name.

    None: torch's own is wanted, since a `main` has handed over to it.
    """
    if _handed_over:
        return None
    return ModuleSpec(name, _Loader(), is_package=name.endswith(".launcher"))


class _Loader(Loader):
    """The loader of a module of torch's name with the contents of Rallypoint's module."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that `importlib` makes an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with what Rallypoint's has; what runs a job does so without the shim."""
        name = module.__name__.removeprefix(f"{_TORCH}.")
        ours = import_module(f"{_OURS}.{name}")
        for key, value in vars(ours).items():
            if not key.startswith("__") or key in ("__all__", "__doc__"):
                setattr(module, key, value)
        if name.startswith("launcher"):
            module.elastic_launch = _ElasticLaunch  # type: ignore[attr-defined]
            module.launch_agent = _without_shim(launcher.launch_agent)  # type: ignore[attr-defined]
            return
        for key in {"run", "launch"} & vars(ours).keys():
            setattr(module, key, _without_shim(getattr(ours, key)))
        if name == "run":
            module.elastic_launch = _ElasticLaunch  # type: ignore[attr-defined]
        module.main = _main_of(module.__name__, ours.main)  # type: ignore[attr-defined]


class _ElasticLaunch(launcher.elastic_launch):
    """The `elastic_launch` of `rallypoint.elastic.launcher`, whose workers run without the shim."""

    def __call__(self, *args: Any) -> dict[int, Any]:
        with _outside():
            return super().__call__(*args)


_ElasticLaunch.__name__ = _ElasticLaunch.__qualname__ = "elastic_launch"


def _without_shim(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **named: Any) -> Any:
        with _outside():
            return call(*args, **named)

    called.__name__, called.__doc__ = call.__name__, call.__doc__
    return called


@contextmanager
def _outside() -> Iterator[None]:
    """Take the shim out of the environment while the block runs a job.

    The job's ChildFailedError can also be caught as torch's, if torch's is imported.
    """
    try:
        with left(os.environ):
            yield
    except ChildFailedError as error:
        theirs = getattr(sys.modules.get(_OF_TORCH), "ChildFailedError", None)
        if theirs is not None and not isinstance(error, theirs):
            error.__class__ = _also(theirs)
        raise


def _also(theirs: type[Exception]) -> type[ChildFailedError]:
    """Return a subclass of ChildFailedError and of torch's class of that name, `theirs`.

    Its objects are pickled as Rallypoint's ChildFailedError.
    """

    def reduced(error: ChildFailedError) -> tuple[object, ...]:
        remade, _, *fields = ChildFailedError.__reduce__(error)
        return (remade, (ChildFailedError, error.args), *fields)

    body = {"__reduce__": reduced, "__module__": ChildFailedError.__module__}
    return type(ChildFailedError.__name__, (ChildFailedError, theirs), body)


def _main_of(name: str, ours: Callable[[Sequence[str] | None], None]) -> Callable[..., None]:
    def main(args: Sequence[str] | None = None) -> None:
        option = _unknown_option(sys.argv[1:] if args is None else [*map(str, args)])
        if option:
            told = f"{shown(option)}: rallypoint run has no such option, so torch's own {name}"
            print_error("rallypoint shim", f"{told} runs this job")
            with left(os.environ):
                _torchs(name).main(args)
            return
        with _outside():
            ours(args)

    main.__doc__ = ours.__doc__
    return main


def _unknown_option(words: Sequence[str]) -> str:
    try:
        parse(RUN, words, {})
    except UnknownOptionError as error:
        return error.option
    except (UsageError, HelpRequested):
        pass  # Told by what is called then.
    return ""


def _torchs(name: str) -> Any:
    """Import and return torch's own module of this name; from now on all imports get torch's."""
    _handed_over.append(name)
    for each in _NAMES:
        sys.modules.pop(f"{_TORCH}.{each}", None)
    return import_module(name)
