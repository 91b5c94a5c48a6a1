"""Messages of one node made from bytes: plausible values, and among them those that nobody expects.

Whatever bytes come, `converse` makes a conversation of them, so that the property test and the
coverage-guided fuzzer share everything.
"""

from __future__ import annotations

import types
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from tests.fuzz.hostile_node import NO_BUDGET, RULES, Liar, Scene, StoppedLoop
from tests.fuzz.store_conversation import Choices

from rallypoint.core import limits
from rallypoint.core import messages as m
from rallypoint.core.model import Candidate, SharedSettings, Stamp
from rallypoint.wire.codec import MAX_MESSAGE_BYTES, encode

INF, NAN = float("inf"), float("nan")
_loop = StoppedLoop()
ESCAPES = (
    "\x1b]0;PWNED\x07\x1b[2J\x1b[31mred\x1b[0m\nrallypoint: job J succeeded in 1 s\r\u202e\x00\x85"
)
NASTY = {
    int: (
        *(-1, 0, 1, 255, 256, 4096, 4097, 65535, 65536, 100_000, 2**31, 2**40),
        *(2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)),
    ),
    float: (
        *(NAN, INF, -INF, -0.0, -1.0, -1e18, 1e-9, 0.001, 86400.0, 86401.0, 1e9, 1e10),
        *(1e300, 1e308, limits.MAX_UNIX_TIME, limits.MAX_UNIX_TIME + 1, 5e-324),
    ),
    str: (
        *("", "\0", ESCAPES, "x" * 2000, "\U0001f600" * 2000, "A" * 200_000, "x\n" * 60_000),
        *("127.0.0.1\0x", "127.0.0.1\nLD_PRELOAD=/x", "x" * 300 + ".y", "a..b"),
        *(
            "\x1b" * 4000,
            "\x1b" * 24_000,
            "{node}",
            "%s",
            "r" * 255,
            "\u00e9" * 128,
            "/x" + ESCAPES,
        ),
    ),
    bytes: (b"", b"\0" * 32, b"x" * 64, b"x" * 65, b"x" * 100_000),
    bool: (True, False),
}
PLAUSIBLE: dict[str, tuple[Any, ...]] = {
    "node_id": ("zz", "a", "", "host-0"),
    "former_id": ("", "zz"),
    "host_name": ("host", "other"),
    "incarnation": ("life-z",),
    "address": ("127.0.0.1", "::1", "node7.example"),
    "store_port": (29500, 1, 65535),
    "role": ("default", "trainer"),
    "workers": (1, 2, 8),
    "node_rank": (-1, 0, 1, 2),
    "exit_code": (1, None, 127),
    "signal": (None, 15, 9, 0),
    "number": (1, 2, 3, 7),
    "seq": (1, 2, 3),
    "local_rank": (0, 1, 5),
    "rank": (0, 4, 5),
    "wall_time": (1.7e9,),
    "detail": ("Traceback (most recent call last):\n  boom", ""),
    "settings": (NO_BUDGET, RULES),
    "notice_s": (0.0, 5.0),
}
USUAL: dict[Any, tuple[Any, ...]] = {
    int: (0, 1, 3),
    float: (0.0, 1.0, 60.0),
    str: ("text", ""),
    bytes: (b"",),
    bool: (False, True),
}
NASTY_SHARE = 8
"""One value of so many."""
REPORTS: tuple[type[Struct], ...] = (m.Failed, m.Detailed, *get_args(m.Report))


class Made:
    """Values out of choices. `stamp` is the round that this node is in."""

    def __init__(self, choices: Choices, stamp: Stamp) -> None:
        self.choices, self.stamp = choices, stamp

    def struct(self, kind: type[Struct]) -> Any:
        if kind is Stamp and self.choices.number(NASTY_SHARE):
            return self.stamp
        given = {name: self.value(hint, name) for name, hint in _hints(kind).items()}
        return kind(**given)

    def value(self, hint: Any, name: str) -> Any:
        if get_origin(hint) in (Union, types.UnionType):
            hint = self._one(get_args(hint))
        if hint is type(None):
            return None
        is_nasty = not self.choices.number(NASTY_SHARE)
        if name in PLAUSIBLE and not is_nasty:
            return self._one(PLAUSIBLE[name])
        if get_origin(hint) is tuple:
            size = self._one((1, 1, 2, 0, 3, 200))
            return (self.value(get_args(hint)[0], name),) * size
        if issubclass(hint, Struct):
            return self.struct(hint)
        if issubclass(hint, Enum):
            return self._one(tuple(hint))
        return self._one((NASTY if is_nasty else USUAL)[hint])

    def _one(self, among: tuple[Any, ...]) -> Any:
        return among[self.choices.number(len(among))]


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def is_decodable(message: m.ToCoordinator) -> bool:
    """By its types and its size: whether its values are in their limits is another question."""
    payload = encode(message)
    try:
        msgspec.msgpack.decode(payload, type=m.ToCoordinator)
    except msgspec.ValidationError:
        return False
    return len(payload) <= MAX_MESSAGE_BYTES


def converse(data: bytes) -> None:
    """One node with the token attaches, joins, and says a few things. Raises AssertionError when
    that stops an honest node, or shows on its screen what must not."""
    _loop.run_now(_converse(Choices(data)))


async def _converse(choices: Choices) -> None:
    scene = Scene((NO_BUDGET, RULES)[choices.number(2)])
    try:
        liar = Liar(scene, "zz")
        made = Made(choices, Stamp(0, 0))
        attach = made.struct(m.Attach) if not choices.number(4) else None
        # A node may claim another's name: the later one has it, as is promised.
        if attach is not None and attach.node_id not in ("h", "v") and is_decodable(attach):
            liar.say(attach)
        else:
            liar.attach()
        scene.said()
        if choices.number(8):
            liar.join()
            scene.said()
        for _ in range(1 + choices.number(6)):
            made.stamp = liar.assigned.stamp if liar.assigned else made.stamp
            kind = REPORTS[choices.number(len(REPORTS))]
            report = made.struct(kind)
            numbered = m.Numbered(liar.next_number(), report)
            if choices.number(16) and is_decodable(numbered):
                liar.say(numbered)
            else:
                others = m.DrainNode, m.AgentDied, m.Heartbeat, m.Collected, m.Ask
                other = made.struct(others[choices.number(len(others))])
                if is_decodable(other):
                    liar.say(other)
            scene.said()
        # It stops its workers, as it was told, and the round is judged.
        liar.report(m.Join(50, Candidate(1, "default", "127.0.0.1", 29500)))
        scene.said()
    finally:
        scene.close()


def settings_of(**changes: Any) -> SharedSettings:
    """What a liar says that the job is."""
    return msgspec.structs.replace(RULES, **changes)
