"""Reads Prometheus' text format 0.0.4, and accepts nothing that the format does not allow."""

from __future__ import annotations

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
ESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
PARTS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parse(text: str) -> Samples:
    """Every line's value by its name and labels. AssertionError for what is wrong."""
    assert text.endswith("\n")
    found: Samples = {}
    kinds: dict[str, str] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            current, about = line[7:].split(" ", 1)
            assert re.fullmatch(NAME, current)
            assert current not in kinds, f"{current} comes twice"
            assert about
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name == current, "TYPE without its HELP"
            assert kind in PARTS
            kinds[name] = kind
            assert (kind == "counter") == name.endswith("_total")
        else:
            name, labels, value = read_sample(line)
            assert name in [current + part for part in PARTS[kinds[current]]], line
            assert (name, labels) not in found, f"{line} comes twice"
            found[name, labels] = value
    for name in (name for name, kind in kinds.items() if kind == "histogram"):
        check_histogram(name, found)
    return found


def read_sample(line: str) -> tuple[str, tuple[tuple[str, str], ...], float]:
    whole = SAMPLE.fullmatch(line)
    assert whole, line
    labels, rest = [], whole[2] or ""
    while rest:
        label = LABEL.match(rest)
        assert label, line
        value = re.sub(r'\\["\\n]', lambda found: ESCAPED[found[0]], label[2])
        labels.append((label[1], value))
        rest = rest[label.end() :]
    return whole[1], tuple(labels), float(whole[3])


def check_histogram(name: str, found: Samples) -> None:
    """Buckets only grow, and the last has all."""
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    for (sample, labels), value in found.items():
        if sample == name + "_bucket":
            bound = float(dict(labels)["le"])
            series.setdefault(labels[:-1], []).append((bound, value))
    assert series
    for labels, buckets in series.items():
        assert buckets == sorted(buckets)
        assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert buckets[-1] == (float("inf"), found[name + "_count", labels])
        assert (name + "_sum", labels) in found
