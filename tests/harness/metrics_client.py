"""A client of a port for metrics."""

from __future__ import annotations

import http.client
import re

from tests.harness.one_agent import OneAgent
from tests.harness.prometheus_parser import Samples, parse


def port_of(one: OneAgent) -> int:
    one.wait_said("metrics are served at ")
    found = re.search(r"http://127\.0\.0\.1:(\d+)/metrics", one.err)
    assert found
    return int(found[1])


def ask(
    port: int, method: str = "GET", path: str = "/metrics", **headers: str
) -> tuple[int, str, str]:
    """Status, kind and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    kind = answer.headers["Content-Type"]
    return answer.status, kind, answer.read().decode()


def scrape(port: int) -> Samples:
    status, kind, text = ask(port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return parse(text)


def one(samples: Samples, name: str, **labels: str) -> float:
    return samples["rallypoint_" + name, tuple(labels.items())]
