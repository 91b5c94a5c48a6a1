"""Prometheus' text format, version 0.0.4: from numbers with names to lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, isnan
from typing import Literal, TypeAlias

from msgspec import Struct

from rallypoint.observe.printing import visible

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values of labels, in the order in which they are shown."""


class Sample(Struct, frozen=True):
    """One line of a metric. `suffix` ends the metric's name; it is empty except in a histogram."""

    value: float
    labels: Labels = ()
    suffix: str = ""


class Family(Struct, frozen=True):
    """All lines of one metric. A counter's name ends with `_total`."""

    name: str
    kind: Kind
    about: str
    samples: tuple[Sample, ...]


class Histogram:
    """The number of observed values up to each bound, their number in all, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts = tuple(bounds), [0] * len(bounds)
        self._count, self._sum = 0, 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._count += 1
        self._sum += value
        for place, bound in enumerate(self._bounds):
            if value <= bound:
                self._counts[place] += 1

    def samples(self, labels: Labels) -> Iterator[Sample]:
        """Yield the lines of a family of kind `histogram`."""
        for bound, count in zip(self._bounds, self._counts, strict=True):
            yield Sample(count, (*labels, ("le", _number(bound))), "_bucket")
        yield Sample(self._count, (*labels, ("le", "+Inf")), "_bucket")
        yield Sample(self._sum, labels, "_sum")
        yield Sample(self._count, labels, "_count")


def prometheus_text(families: Iterable[Family]) -> str:
    """Return the metrics in Prometheus' text format; a family without samples is left out."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        about = family.about.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {family.name} {about}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += (
            f"{family.name}{sample.suffix}{_braced(sample.labels)} {_number(sample.value)}"
            for sample in family.samples
        )
    return "".join(line + "\n" for line in lines)


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    lines = [visible(line).replace("\\", "\\\\").replace('"', '\\"') for line in value.split("\n")]
    return "\\n".join(lines)


def _number(value: float) -> str:
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
    return str(int(value)) if whole else repr(value)
