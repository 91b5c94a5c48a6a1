"""What others have written, made from bytes, and every reader of it.

A reader returns a value or raises its one documented error; what it returned can be shown. Whatever
bytes come, `read` makes a text of them, so that the property test and the coverage-guided fuzzer
share everything.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from email.message import Message
from functools import cache
from http.client import HTTPMessage
from typing import Any

import yaml
from msgspec.structs import replace
from tests.fuzz.store_conversation import Choices
from tests.harness.watched_cluster import WatchedCluster

from rallypoint.cli import job_verdict
from rallypoint.cli.generate.quoting import bash_word, container_word, yaml_value
from rallypoint.cli.watch.asking.reach import decoded
from rallypoint.cli.watch.events import event_line
from rallypoint.cli.watch.status_text import status_lines
from rallypoint.core.json_reader import UnreadableJsonError, read_object
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.settings import MAX_NODES
from rallypoint.core.takeover.record import Leader, LeadRecord, Process, record_of
from rallypoint.core.watch.history import HistoryEntry
from rallypoint.core.watch.history_file import (
    Begin,
    HistoryLine,
    LinesLost,
    NoHistoryError,
    as_object,
    compact,
    read,
)
from rallypoint.core.watch.job_view import JobView
from rallypoint.errors import RallypointError, RecordError, UsageError
from rallypoint.integrations.hostfile import read_hostfile, read_hosts, without
from rallypoint.integrations.slurm_nodes import node_count, node_names
from rallypoint.integrations.slurm_step import options_of, read_step
from rallypoint.observe.printing import json_text, printed
from rallypoint.register import record as register_record
from rallypoint.register.etcd.answers import check_answer, next_key
from rallypoint.register.http import HttpReply
from rallypoint.register.kubernetes.api_server import ApiServer
from rallypoint.register.kubernetes.parameters import KubernetesConfig

DEEP = b"\x91" * 10_000
"""Lists within lists, as MessagePack has them."""
BATCH = 200
"""So many words are read by one bash: starting it takes as long as all else with them."""
NASTY = (
    *("null", "true", "0", "-1", "1e300", "-1e300", "1e999", "NaN", "1.5", "9" * 25, "9" * 5000),
    *("[]", "{}", '""', r'"\ud800"', r'"\u0000\u001b[2J\n"', "[" * 200 + "]" * 200, '"x', "[1,"),
    *("9223372036854775807", "18446744073709551615", "253370764801", '"\u202e"', '{"a":1}'),
)
"""JSON in place of a value."""
PIECES = (
    *("a", "node-1", "n[1-3]", "r[1-2]n[01-02]", ",", ":", "@", "[", "]", "-", "=", " ", "\n", "#"),
    *("slots", "max_slots", "port", "user", "8", "0", "99999999999", "9" * 30, "::1", "[fe80::1]"),
    *("\x1b[2J", "\u202e", "\u0663", "\0", "\udcff", "é", "'", '"', "$", "\\", "$(X)", "$$", "`"),
    *(
        "\U0001f600",
        "\x85",
        "\u2028",
        "\ufeff",
        "%",
        "n[1-99999]",
        "[0-9]" * 7,
        "x" * 300,
        "!",
        "~",
    ),
)
"""Of host lists, and of words."""
HISTORY_TIME = 1e9
CONFIG = KubernetesConfig("127.0.0.1:1", namespace="space", service_account="/nowhere")

_words: list[str] = []
"""Of the next batch."""


def read_bytes(data: bytes) -> None:
    """One text of one kind is read. Raises what no reader may raise, and AssertionError."""
    choices = Choices(data)
    READERS[choices.number(len(READERS))](choices)


def check_words() -> None:
    """bash gets the words of all texts since the last time. Blocks."""
    words, _words[:] = _words[:], []
    if words:
        script = "printf '%s\\0' " + " ".join(map(bash_word, words))
        done = subprocess.run(
            ["bash", "-c", script], env={"LC_ALL": "C"}, capture_output=True, check=True
        )
        assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in words]


def text(choices: Choices) -> str:
    return "".join(PIECES[choices.number(len(PIECES))] for _ in range(choices.number(12)))


def with_nasty(choices: Choices, good: Any) -> bytes:
    """The JSON of a good value with up to three values in it replaced or left out, and perhaps
    bytes changed."""
    copy = json.loads(json.dumps(good))
    found: list[str] = []
    for _ in range(choices.number(4)):
        at: Any = copy
        for _ in range(6):
            keys = list(at) if isinstance(at, dict) else range(len(at))
            key = keys[choices.number(len(keys))]
            if isinstance(at[key], dict | list) and at[key] and choices.number(4):
                at = at[key]
                continue
            if choices.number(4):
                at[key] = f"@{len(found)}@"
                found.append(NASTY[choices.number(len(NASTY))])
            else:
                del at[key]
            break
        if not copy:
            break
    said = json.dumps(copy)
    for number, nasty in enumerate(found):
        said = said.replace(f'"@{number}@"', nasty)
    raw = said.encode()
    return raw if choices.number(3) else choices.mutated(raw)


def _shown(lines: list[str]) -> None:
    printed(*lines).encode()


@cache
def _cluster() -> WatchedCluster:
    cluster = WatchedCluster(SharedSettings("job", 2, 2))
    cluster.nodes(2)
    cluster.run_workers()
    cluster.lose("node-1", "its connection was closed")
    return cluster


@cache
def _history() -> dict[str, Any]:
    entry = HistoryEntry(1, HISTORY_TIME, "restart", "WARNING", 0, "restart 1 of 2", "b")
    past, status = _cluster().history.rounds[0], compact(_cluster().view, HISTORY_TIME)
    made: list[HistoryLine] = [Begin("job", 1, HISTORY_TIME), entry, past, status, LinesLost(3)]
    return {line["kind"]: line for line in map(as_object, made)}


@cache
def _record() -> bytes:
    job = record_of(_cluster().job)
    leader = Leader(("127.0.0.1:29400",), Process("boot", 1, 1), has_workers=True)
    return register_record.encode(LeadRecord(1, Epoch(1, 1), leader, 0, job))


def history(choices: Choices) -> None:
    kinds = list(_history().values())
    begin = kinds[0]
    lines = [b"" if not choices.number(20) else json.dumps(begin).encode()]
    lines += [
        with_nasty(choices, kinds[choices.number(len(kinds))]) for _ in range(1 + choices.number(4))
    ]
    if choices.number(2):
        lines.append(json.dumps(kinds[1]).encode())
    try:
        found = read(b"\n".join(lines).split(b"\n"))
    except NoHistoryError as error:
        _shown([f"file: {error}"])
        return
    _shown([event_line(entry, HISTORY_TIME) for entry in found.entries])
    for entry in found.entries:
        json_text(entry)
    if found.status is not None:
        view = replace(found.status.view, past=tuple(found.rounds[-3:]))
        _show_view(view)


def _show_view(view: JobView) -> None:
    json_text(view)
    for width in (20, 200):
        _shown(status_lines(view, width))
    _shown(status_lines(view, 80, 1000))


def status_of_a_coordinator(choices: Choices) -> None:
    try:
        view = decoded(with_nasty(choices, _history()["status"]["view"]), JobView)
    except UsageError as error:
        _shown([str(error)])
        return
    _show_view(view)


def summary(choices: Choices) -> None:
    good = {"outcome": "failed", "exit_code": 1, "reason": "r", "node": "a", "schema": 1}
    try:
        said = job_verdict.read_said(with_nasty(choices, good))
    except UnreadableJsonError:
        return
    assert 0 <= said.exit_code <= 255


def record(choices: Choices) -> None:
    data = choices.mutated(_record())
    if not choices.number(8):
        data = DEEP if choices.number(2) else data[: choices.number(len(data) + 1)] + DEEP
    try:
        register_record.decode(data)
    except RecordError as error:
        _shown([str(error)])


_DATED = {"revision": "7", "cluster_id": "3"}
_PAIR = {"key": "YQ==", "mod_revision": "5", "value": "Yg==", "version": "2", "lease": "9"}
_RANGE: dict[str, Any] = {"header": _DATED, "kvs": [_PAIR], "more": False, "count": "1"}
ETCD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v3/auth/authenticate": ({}, {"header": _DATED, "token": "abc.7"}),
    "/v3/kv/deleterange": ({}, {"header": _DATED, "deleted": "1"}),
    "/v3/kv/put": ({}, {"header": _DATED, "prev_kv": {"version": "3"}}),
    "/v3/kv/range": ({}, _RANGE),
    "/v3/kv/txn": (
        {"success": [{"request_range": {}}, {"request_put": {}}], "failure": []},
        {
            "header": _DATED,
            "succeeded": True,
            "responses": [{"response_range": _RANGE}, {"response_put": {"header": _DATED}}],
        },
    ),
    "/v3/lease/grant": ({}, {"header": _DATED, "ID": "77", "TTL": "5"}),
    "/v3/lease/keepalive": ({}, {"result": {"header": _DATED, "TTL": "5"}}),
    "/v3/maintenance/status": ({}, {"header": _DATED, "leader": "9"}),
    "/v3/watch": ({}, {"result": {"header": _DATED, "canceled": False, "events": [{}]}}),
}


def answer_of_etcd(choices: Choices) -> None:
    path = list(ETCD)[choices.number(len(ETCD))]
    body, good = ETCD[path]
    try:
        answer = read_object(with_nasty(choices, good))
        check_answer(path, body, answer)
        if path == "/v3/kv/range":
            next_key(answer, b"a")
            for pair in answer.get("kvs", ()):
                int(pair["mod_revision"])
                int(pair.get("version", "0"))
    except UnreadableJsonError as error:
        _shown([f"its answer is not understood: it {error}"])


_OBJECT = {
    "kind": "ConfigMap",
    "metadata": {"name": "job", "resourceVersion": "7", "uid": "x"},
    "data": {"state": "YQ=="},
}
KUBERNETES: tuple[dict[str, Any], ...] = (
    _OBJECT,
    {"kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [_OBJECT]},
    {"kind": "Status", "status": "Failure", "message": "configmaps is forbidden", "code": 403},
)
STATUSES = (200, 201, 401, 403, 404, 409, 410, 429, 500, 503)


def answer_of_the_api_server(choices: Choices) -> None:
    headers: Message = HTTPMessage()
    if choices.number(2):
        headers["Date"] = ("Thu, 26 Nov 2026 12:00:00 GMT", "x", "9" * 40)[choices.number(3)]
    data = with_nasty(choices, KUBERNETES[choices.number(len(KUBERNETES))])
    status = STATUSES[choices.number(len(STATUSES))]
    assert isinstance(headers, HTTPMessage)
    try:
        reply = ApiServer(CONFIG)._reply(HttpReply(status, headers, data))
    except RallypointError as error:
        _shown([str(error)])
        return
    assert all(isinstance(item, dict) for item in reply.items)


def hosts(choices: Choices) -> None:
    said = text(choices)
    readers: tuple[Callable[[str], Any], ...] = (read_hosts, read_hostfile, node_names, _excluded)
    try:
        found = readers[choices.number(len(readers))](said)
    except ValueError as error:
        _shown([str(error)])
        return
    assert 0 < len(found) <= MAX_NODES


def _excluded(said: str) -> Any:
    return without(read_hosts("a,node-1,n[1-3],bob@c"), said)


def slurm(choices: Choices) -> None:
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1",
        "SLURM_STEP_ID": "0",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_TOPOLOGY_ADDR": "s0.n1",
    }
    for _ in range(1 + choices.number(2)):
        environ[list(environ)[choices.number(len(environ))]] = text(choices)
    try:
        step = read_step(environ)
        options_of(step)
    except UsageError as error:
        _shown([str(error)])
        return
    assert len(step.nodes) == node_count(environ["SLURM_STEP_NODELIST"])


def words(choices: Choices) -> None:
    """What is generated of words is read as these words again."""
    word = text(choices)
    try:
        said = container_word(word)
        line = yaml_value([said, {"k": word}])
        as_bash = bash_word(word)
    except UsageError:
        assert "\0" in word or "\udcff" in word
        return
    assert line.isprintable()
    assert as_bash.isprintable()
    assert json.loads(line) == [said, {"k": word}]
    if len(_words) % 8 == 0:  # It takes longer than all else.
        assert yaml.safe_load(line) == [said, {"k": word}]
    _words.append(word)
    if len(_words) >= BATCH:
        check_words()


READERS: tuple[Callable[[Choices], None], ...] = (
    *(history, status_of_a_coordinator, summary, record, answer_of_etcd),
    *(answer_of_the_api_server, hosts, slurm, words),
)
