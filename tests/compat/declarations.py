"""What can be seen of public names without calling them: parameters, defaults, bases, members.

`declared` describes what is behind names, torch's as ours, in a form that is kept in JSON;
`differences` says what a program that was written for torch would notice.
"""

from __future__ import annotations

import dataclasses
import dis
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import CodeType
from typing import Any, NamedTuple

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields as struct_fields

from rallypoint.elastic.agent.embedded.refused_hooks import CALLED_HOOKS

Shown = dict[str, Any]
"""One thing, as JSON has it."""
SPECIAL = (
    *("__call__", "__enter__", "__exit__", "__iter__", "__next__", "__len__", "__getitem__"),
    *("__contains__", "__eq__", "__lt__"),
)
_PLUMBING = frozenset({"pybind11_object", "Generic", "ReprEnum"})
_SIMPLE = (bool, int, float, str, type(None))
_MARKS = {"POSITIONAL_ONLY": "/", "KEYWORD_ONLY": ":", "VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
_OPTIONAL = "?"
"""The default of a parameter that may be left out, where nobody says what it is then."""
_PYBIND = re.compile(r"^(?:\d+\. )?\w+\((self.*)\) -> ", re.MULTILINE)
"""The signature in the documentation of a function that is written in C++."""


class Parameter(NamedTuple):
    """One parameter, kept as `name`, `/name` (by place only), `:name` (by name only), `*name` or
    `**name`, and `=default`."""

    mark: str
    name: str
    default: str = ""

    @property
    def has_place(self) -> bool:
        """Whether it may be given by its place."""
        return self.mark in ("", "/")

    def __str__(self) -> str:
        return f"{self.mark}{self.name}" + (f"={self.default}" if self.default else "")


def parameters(kept: str) -> list[Parameter]:
    """Those of a text that was kept."""
    found = []
    for text in kept.split(", ") if kept else ():
        parts = re.fullmatch(r"([/:*]*)(\w+)=?(.*)", text)
        assert parts is not None, text
        found.append(Parameter(*parts.groups()))
    return found


def declared(names: Iterable[str], find: Callable[[str], object]) -> dict[str, Shown]:
    """By name: what is behind it. Aliases of types are left out."""
    found = {name: _shown(find(name)) for name in names}
    return {name: shown for name, shown in found.items() if shown is not None}


def _shown(value: object) -> Shown | None:
    if isinstance(value, type):
        return _class(value)
    if isinstance(value, _SIMPLE):
        return {"is": "value", "value": value}
    if hasattr(value, "__code__") or hasattr(value, "__wrapped__"):
        return {"is": "function", "takes": _takes(value)}
    return None


def _class(cls: type) -> Shown:
    is_enum = issubclass(cls, Enum)
    members = {name: _member(cls, name) for name in _names(cls)}
    frozen = getattr(getattr(cls, "__dataclass_params__", None), "frozen", False)
    shown: Shown = {
        "is": "class",
        "bases": sorted({base.__name__ for base in cls.__mro__[1:-1]} - _PLUMBING),
        "takes": "" if is_enum else _takes(cls),
        "members": members,
        "sets": sorted({name for name in _set_on_self(cls) if name not in members}),
        "special": [name for name in SPECIAL if _has(cls, name)],
        "abstract": sorted(getattr(cls, "__abstractmethods__", ())),
        "closed": (frozen or cls.__dictoffset__ == 0) and not is_enum,
        "hashable": cls.__hash__ is not None,
    }
    return {key: value for key, value in shown.items() if value or key == "takes"}


def _names(cls: type) -> list[str]:
    """Public members and hooks, but those that every class of a base of Python's has."""
    own = (base for base in cls.__mro__ if not _is_pythons(base))
    names = {name for base in own for name in vars(base)}
    return sorted(name for name in names if not name.startswith("_") or name in CALLED_HOOKS)


def _is_pythons(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names or cls.__name__ in _PLUMBING


def _has(cls: type, name: str) -> bool:
    value = getattr(cls, name, None)
    return value is not None and value is not getattr(object, name, None)


def _member(cls: type, name: str) -> str:
    """A method as `(parameters)`, a constant as `= value`, anything else as an attribute."""
    static, value = inspect.getattr_static(cls, name), getattr(cls, name)
    if isinstance(value, Enum):
        return f"= {value.value!r}, {value!s}"
    if isinstance(value, _SIMPLE) and not dataclasses.is_dataclass(cls):
        return f"= {value!r}"
    if isinstance(value, type) or not callable(value):
        return "attribute"
    skipped = 0 if isinstance(static, staticmethod | classmethod) else 1
    return f"({', '.join(_takes(value).split(', ')[skipped:])})"


def _takes(value: Any) -> str:
    """The parameters, without those that say by their name that they are nobody's."""
    try:
        found = inspect.signature(value).parameters.values()
    except ValueError:
        return _pybind_takes(value)
    factories = _factories(value)
    return ", ".join(
        str(
            Parameter(
                _MARKS.get(one.kind.name, ""),
                one.name,
                factories.get(one.name) or _default(one.default),
            )
        )
        for one in found
        if one.name != "_"
    )


def _factories(value: Any) -> dict[str, str]:
    """What a dataclass makes for a field that is not given."""
    if dataclasses.is_dataclass(value):
        made = {field.name: field.default_factory for field in dataclasses.fields(value)}
    elif isinstance(value, type) and issubclass(value, Struct):
        made = {field.name: field.default_factory for field in struct_fields(value)}
    else:
        return {}
    return {
        name: _default(factory()) if isinstance(factory, type) else "made"
        for name, factory in made.items()
        if factory not in (dataclasses.MISSING, NODEFAULT)
    }


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, Enum):
        return value.name
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return re.sub(r"<(?:class|function) '?(?:[\w<>]+\.)*([\w<>]+)'?>", r"\1", text).replace(
        ", ", ","
    )


def _pybind_takes(value: Any) -> str:
    """Read in the documentation: the longest of several, in which what a shorter one lacks may be
    left out."""
    made_by = value.__init__ if isinstance(value, type) else value  # type: ignore[misc]
    text = made_by.__doc__ or ""
    several = [_read_pybind(line) for line in _PYBIND.findall(text)] or [[Parameter("/", "self")]]
    several.sort(key=len)
    least, longest = len(several[0]), several[-1]
    made = [
        each._replace(default=each.default or _OPTIONAL) if place >= least else each
        for place, each in enumerate(longest)
    ]
    return ", ".join(map(str, made[1:] if isinstance(value, type) else made))


def _read_pybind(line: str) -> list[Parameter]:
    found = []
    for part in re.split(r", (?=\w+:)", line):
        name, _, rest = part.partition(": ")
        mark = "/" if re.fullmatch(r"self|arg\d+", name) else ""
        found.append(Parameter(mark, name, rest.partition(" = ")[2]))
    return found


def _set_on_self(cls: type) -> Iterator[str]:
    """Public attributes that a constructor sets on the object."""
    for base in cls.__mro__:
        for name in ("__init__", "__post_init__"):
            code = getattr(vars(base).get(name), "__code__", None)
            if isinstance(code, CodeType) and not _is_pythons(base):
                for each in dis.get_instructions(code):
                    if each.opname == "STORE_ATTR" and not each.argval.startswith("_"):
                        yield each.argval


# Differences


def differences(theirs: dict[str, Shown], ours: dict[str, Shown]) -> dict[str, str]:
    """By what differs, such as `elastic.events.Event.serialize` or `launcher.LaunchConfig(role)`:
    how."""
    found: dict[str, str] = {}
    for name, their in theirs.items():
        if name in ours:
            found.update(_differ(name, their, ours[name]))
        else:
            found[name] = "missing"
    return found


def _differ(name: str, their: Shown, our: Shown) -> Iterator[tuple[str, str]]:
    if their["is"] == "value":
        if their != our:
            yield name, f"{our.get('value')!r} instead of {their['value']!r}"
        return
    if our["is"] == "value":
        yield name, "a value"
        return
    yield from _parameters(name, their["takes"], our["takes"])
    if their["is"] == "class" and our["is"] == "class":
        yield from _classes(name, their, our)


def _classes(name: str, their: Shown, our: Shown) -> Iterator[tuple[str, str]]:
    for base in sorted(set(their.get("bases", ())) - set(our.get("bases", ()))):
        yield f"{name}:{base}", "no base class"
    members, sets = our.get("members", {}), our.get("sets", ())
    for member, shown in their.get("members", {}).items():
        if member not in members and member not in sets:
            yield f"{name}.{member}", "missing"
        elif shown[0] == "(":
            ours = members.get(member, "attribute")
            if ours[0] == "(":
                yield from _parameters(f"{name}.{member}", shown[1:-1], ours[1:-1])
            elif ours != "attribute":
                yield f"{name}.{member}", "no method"
        elif shown[0] == "=" and members.get(member) != shown:
            yield f"{name}.{member}", f"{members.get(member)} instead of {shown}"
    for member in their.get("sets", ()):
        if member not in members and member not in sets:
            yield f"{name}.{member}", "missing"
    for special in their.get("special", ()):
        if special not in our.get("special", ()):
            yield f"{name}.{special}", "missing"
    for member in sorted(set(their.get("abstract", ())) ^ set(our.get("abstract", ()))):
        yield f"{name}.{member}", "abstract" if member in our.get("abstract", ()) else "concrete"
    if our.get("closed") and not their.get("closed"):
        yield f"{name}.__dict__", "missing"
    if their.get("hashable") and not our.get("hashable"):
        yield f"{name}.__hash__", "missing"


def _parameters(name: str, theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    known = parameters(ours)
    if [one.mark for one in known] == ["*", "**"]:
        return
    places = [one for one in known if one.has_place]
    used = set()
    for place, their in enumerate(parameters(theirs)):
        by_place = places[place] if place < len(places) else None
        our = next((one for one in known if their.mark[:1] == "*" and one.mark == their.mark), None)
        our = our or next((one for one in known if one.name == their.name), None)
        our = by_place if their.mark == "/" else our
        if our is None:
            yield f"{name}({their.name})", "missing"
            continue
        used.add(our.name)
        if their.has_place and by_place != our:
            yield f"{name}({their.name})", "another place"
        if their.mark == "" and our.mark == "/":
            yield f"{name}({their.name})", "not by name"
        if their.default != our.default and their.default != _OPTIONAL:
            yield (
                f"{name}({their.name})",
                f"default {our.default or 'none'} instead of {their.default or 'none'}",
            )
    for our in known:
        if our.name not in used:
            yield f"{name}({our.name})", "more" if our.default or our.mark[:1] == "*" else "needed"
