"""Packages whose names are imported at first use.

A program that needs one name of a package does not import the modules of the others.
"""

from __future__ import annotations

TYPE_CHECKING = False  # That of `typing` would cost a worker several ms.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def exports(
    package: dict[str, object], names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` (PEP 562) for the package with these globals.

    `names` has the exported names of each module (`.one` is a module of the package). A name is
    looked up once.
    """
    places = {name: module for module, each in names.items() for name in each}
    own = package["__name__"]

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {own!r} has no attribute {name!r}")
        from importlib import import_module

        place = places[name]
        value: object = getattr(import_module(f"{own}{place}" if place[0] == "." else place), name)
        package[name] = value
        return value

    def known() -> list[str]:
        return sorted({*package, *places})

    return get, known
