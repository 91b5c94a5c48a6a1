"""The machine of a launch. Pure: its host (`job.py`) has the links, the output and the clock.

It decides which hosts are reached, when their agents start, what follows when one is lost or a
signal comes, and the exit code.

It lies beside its host and not in `core`: it decides by command lines and summaries, which core
does not know, and no other command needs it.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from enum import Enum
from math import inf

from msgspec import Struct, field

from rallypoint import __version__
from rallypoint.cli.job_verdict import SummaryRead, read_said, surest
from rallypoint.cli.launch.plan import Asked, detached_lines
from rallypoint.config import Endpoint
from rallypoint.core.json_reader import UnreadableJsonError
from rallypoint.core.node.leave import REPEAT_S
from rallypoint.core.outcomes import SIGNALLED, Outcome
from rallypoint.core.text import count, job_name, signal_name
from rallypoint.errors import ExitClass
from rallypoint.wire import launch_link as wire

REACH_S = 60.0
"""The seconds from the beginning of the launch after which a host without an answer is left out."""
BEAT_S = 2.0
SILENCE_S = 60.0
"""The seconds without a message from the launch after which a host takes the link for broken."""
AT_ONCE = 64
"""The most hosts that are being reached at once, because a jump host accepts no more."""
APART_S = 1.5 * REPEAT_S
"""The time in seconds within which equal signals count as one. It is longer than that of agents
(`REPEAT_S`): so they count as many, even if a signal reaches them a little later or earlier."""
_HURRIED = 2
"""The number of signals that are passed on to agents: the second one tells them not to wait. After
a third one this command itself does not wait for them."""
_OF_THE_JOB = frozenset(outcome.value for outcome in Outcome if not outcome.row.of_one)


class HostPart(Enum):
    """The state of a host in the launch."""

    ASKED = "asked"
    READY = "ready"
    RUNS = "runs"
    ENDED = "ended"
    """The host's agent has reported how the job ended."""
    DETACHED = "detached"
    """The host's agent continues without this command, which can send it nothing more."""
    GONE = "gone"
    """The host can't be used, has left or lost the job, or is not waited for."""


class Launch(Struct, eq=False):
    """The state of one launch. The keys are the names of hosts."""

    asked: Asked
    reach_until: float
    """The time after which hosts that have not answered are not waited for."""
    parts: dict[str, HostPart]
    """The state of each host, in their order."""
    unreached: list[str]
    """The hosts that are still to be reached."""
    reaching: set[str] = field(default_factory=set)
    """The hosts that are being reached, and have not answered yet."""
    hellos: dict[str, wire.Hello] = field(default_factory=dict)
    started: dict[str, wire.Started] = field(default_factory=dict)
    said: dict[str, SummaryRead] = field(default_factory=dict)
    """The summaries that agents have sent."""
    mistakes: int = 0
    """The number of hosts that can't be used because of a mistake: something is missing there, or
    the agent refuses the job. The next launch would find the same."""
    where: Endpoint | None = None
    """The endpoint that this command has chosen for the nodes; None: not yet, or not its task."""
    is_started: bool = False
    ending_code: int = 0
    """The exit code, if the job is ended because there are too few hosts; else 0."""
    caught: list[int] = field(default_factory=list)
    """The signals that this command got, without repetitions within `APART_S`."""
    caught_at: float = -inf
    is_over: bool = False

    def those(self, part: HostPart) -> list[str]:
        """Return the hosts in this state, in their order."""
        return [name for name, found in self.parts.items() if found is part]


class Heard(Struct, frozen=True):
    """A host has sent a message other than output."""

    name: str
    message: wire.FromHost


class LinkEnded(Struct, frozen=True):
    """The link to this host has ended."""

    name: str
    why: str
    is_mistake: bool = False
    """Whether something is missing or wrong at the host or here, so that a retry would fail as
    well."""


class Signalled(Struct, frozen=True):
    """A signal has come for this command."""

    number: int


class TimePassed(Struct, frozen=True):
    """The launch begins, or `BEAT_S` seconds have passed since this event came last."""


class Reach(Struct, frozen=True):
    """The effect to start an ssh client for this host."""

    name: str


class Send(Struct, frozen=True):
    """The effect to send a message to this host."""

    name: str
    message: wire.ToHost


class HangUp(Struct, frozen=True):
    """The effect to close the sending side of the link; the host may still send."""

    name: str


class Kill(Struct, frozen=True):
    """The effect to kill the ssh client of this host."""

    name: str


class Say(Struct, frozen=True):
    """The effect to show a line to the user, with the time."""

    text: str


class Print(Struct, frozen=True):
    """The effect to print these lines unchanged to stderr."""

    lines: tuple[str, ...]


class EndOutput(Struct, frozen=True):
    """The effect to show the rest of this host's output."""

    name: str


class ShowLast(Struct, frozen=True):
    """The effect to show the last lines of the host that has most of them, of these hosts.

    They are those in which its agent says how the job ended, and are held back until then.
    `as_one_host`: with the host's name before each line.
    """

    names: tuple[str, ...]
    as_one_host: bool = True


class Hurry(Struct, frozen=True):
    """The effect to stop waiting for a slow console: a user has sent a third signal."""


class Over(Struct, frozen=True):
    """The effect to end this command with this exit code.

    Links get `patience_s` seconds to end by themselves.
    """

    code: int
    patience_s: float


Event = Heard | LinkEnded | Signalled | TimePassed
Effect = Reach | Send | HangUp | Kill | Say | Print | EndOutput | ShowLast | Hurry | Over


def begin(asked: Asked, at: float) -> Launch:
    """Return a launch that begins at this time, in seconds."""
    names = [host.name for host in asked.plan.hosts]
    return Launch(asked, at + REACH_S, dict.fromkeys(names, HostPart.ASKED), names)


def step(state: Launch, event: Event, at: float) -> list[Effect]:
    """Apply one event to the launch, and return the effects to execute. O(number of hosts)."""
    effects: list[Effect] = []
    match event:
        case Signalled(number):
            effects = _signalled(state, number, at)
        case _ if state.is_over:
            return []
        case Heard(name, message):
            state.reaching.discard(name)
            effects = _heard(state, name, message)
        case LinkEnded(name):
            state.reaching.discard(name)
            effects = _link_ended(state, event)
        case TimePassed():
            effects = [Send(name, wire.Beat()) for name in state.those(HostPart.RUNS)]
            if at >= state.reach_until:
                effects += _give_up_reaching(state)
    return effects + _go_on(state)


def abandon(state: Launch) -> None:
    """End a launch after a bug: from now on only signals have an effect."""
    state.is_over = True


def _heard(state: Launch, name: str, message: wire.FromHost) -> list[Effect]:
    part, effects = state.parts[name], list[Effect]()
    match message:
        case wire.Here() if part is HostPart.ASKED and message.version != __version__:
            there = f"rallypoint {message.version} is there, and {__version__} here"
            effects = _failed(state, name, f"can't be used: {there}", is_mistake=True)
        case wire.Hello() if part is HostPart.ASKED:
            state.hellos[name], state.parts[name] = message, HostPart.READY
        case wire.AgentRefused() if part in (HostPart.ASKED, HostPart.RUNS):
            effects = _failed(state, name, f"can't take part: {message.why}", is_mistake=True)
        case wire.Started() if part is HostPart.RUNS:
            state.started[name] = message
            if state.asked.detach:
                state.parts[name] = HostPart.DETACHED
        case wire.AgentEnded() if part is HostPart.RUNS:
            effects = _ended(state, name, message)
    return effects


def _link_ended(state: Launch, event: LinkEnded) -> list[Effect]:
    name, why = event.name, event.why
    match state.parts[name]:
        case HostPart.ASKED | HostPart.READY:
            return _failed(state, name, why, is_mistake=event.is_mistake)
        case HostPart.RUNS:
            then = "may run on" if state.asked.detach else "saves a checkpoint and leaves"
            why = f"the link is broken ({why}): its agent {then}"
            return [EndOutput(name), ShowLast((name,)), *_failed(state, name, why)]
    return []


def _failed(state: Launch, name: str, why: str, *, is_mistake: bool = False) -> list[Effect]:
    state.parts[name] = HostPart.GONE
    state.mistakes += is_mistake
    return [Say(f"{name}: {why}"), HangUp(name), *_end_if_too_few(state)]


def _ended(state: Launch, name: str, end: wire.AgentEnded) -> list[Effect]:
    said, effects = _said(name, end), list[Effect]([EndOutput(name)])
    if said is not None:
        state.said[name] = said
        state.mistakes += said.outcome == Outcome.USAGE.value
    if said is not None and said.outcome in _OF_THE_JOB:
        state.parts[name] = HostPart.ENDED
        return effects + _end_if_too_few(state)
    state.parts[name] = HostPart.GONE
    effects.append(ShowLast((name,)))
    if end.code == -signal.SIGTERM and (state.caught or state.ending_code):
        pass  # It had begun a moment ago.
    elif end.code < 0:
        effects.append(Say(f"{name}: its agent was killed by {signal_name(-end.code)}"))
    elif said is None:
        effects.append(Say(f"{name}: its agent exited with code {end.code}"))
    return effects + _end_if_too_few(state)


def _end_if_too_few(state: Launch) -> list[Effect]:
    """Return the effects that end the job if fewer hosts are left than it needs.

    Hosts on standby count as left. A host that was lost does not come back.
    """
    if state.asked.detach:
        return []  # Agents that run on can't be told.
    runs, least = state.those(HostPart.RUNS), state.asked.plan.least
    left = len(runs) + len(state.those(HostPart.ENDED))
    if state.caught or state.ending_code or not runs or left >= least:
        return []
    state.ending_code = _not_enough_code(state)
    told = f"{count(len(runs), 'host')} left, and --nodes needs {least}: ending the job"
    return [Say(told), *_deliver(state, signal.SIGTERM)]


def _signalled(state: Launch, number: int, at: float) -> list[Effect]:
    if state.caught[-1:] == [number] and at - state.caught_at < APART_S:
        return []
    state.caught_at = at
    state.caught.append(number)
    if len(state.caught) <= _HURRIED:
        return _deliver(state, number)
    effects: list[Effect] = [Hurry()]
    for name in state.those(HostPart.RUNS):
        state.parts[name] = HostPart.GONE
        effects.append(Say(f"{name}: not waited for"))
    return effects


def _deliver(state: Launch, number: int) -> list[Effect]:
    return [Send(name, wire.Deliver(number)) for name in state.those(HostPart.RUNS)]


def _give_up_reaching(state: Launch) -> list[Effect]:
    effects: list[Effect] = []
    for name in state.those(HostPart.ASKED):
        state.parts[name] = HostPart.GONE
        text = f"{name}: can't be used: it has not answered in {REACH_S:g} s"
        effects += [Say(text), Kill(name)]
    return effects


def _go_on(state: Launch) -> list[Effect]:
    """Return the effects that are due after any event."""
    if state.is_over or (state.is_started and state.those(HostPart.RUNS)):
        return []
    if state.is_started:
        return _detached(state) if state.asked.detach else _end(state)
    if state.caught:
        got = f"got {signal_name(state.caught[0])}: nothing was started"
        return [Say(got), _over(state, SIGNALLED + state.caught[0])]
    if state.those(HostPart.ASKED):
        room = AT_ONCE - len(state.reaching)
        names, state.unreached = state.unreached[:room], state.unreached[room:]
        state.reaching.update(names)
        return [Reach(name) for name in names]
    ready, least = state.those(HostPart.READY), state.asked.plan.least
    if len(ready) >= least:
        return _start(state, ready)
    gone = ", ".join(state.those(HostPart.GONE))
    told = f"{count(len(ready), 'host')} can take part, and --nodes needs {least}; without {gone}"
    lines = (f"rallypoint: nothing was started: {told}",)
    return [Print(lines), _over(state, _not_enough_code(state))]


def _start(state: Launch, ready: list[str]) -> list[Effect]:
    asked, plan = state.asked, state.asked.plan
    leader = _leader(state, ready)
    hosts = {host.name: host for host in plan.hosts}
    if plan.picks_endpoint:
        hello = state.hellos[leader]
        state.where = Endpoint(hello.address or hosts[leader].host, hello.port)
    effects: list[Effect] = [Say(_what_starts(state, ready))]
    for name in ready:
        state.parts[name] = HostPart.RUNS
        words = plan.agent_words(hosts[name], state.where, name == leader, len(ready))
        start = wire.Start(
            tuple(words),
            plan.remote.environ,
            asked.token,
            name,
            asked.summary,
            plan.run_id if asked.detach else "",
            SILENCE_S,
        )
        effects.append(Send(name, start))
    state.is_started = True
    return effects


def _leader(state: Launch, ready: list[str]) -> str:
    """Return the first of these hosts whose address is not loopback, else the first of all.

    The name of this machine may resolve to loopback, where other hosts can't reach it.
    """
    others = [name for name in ready if not _is_loopback(state.hellos[name].address)]
    return (others or ready)[0]


def _what_starts(state: Launch, ready: list[str]) -> str:
    plan = state.asked.plan
    spare = len(ready) - max(plan.least, min(plan.most, len(ready)))
    stands_by = f", of which {spare} stand by" if spare > 1 else ", of which 1 stands by"
    where = f"; the nodes connect at {state.where}" if state.where else ""
    gone = state.those(HostPart.GONE)
    without = f", without {', '.join(gone)}" if gone else ""
    return (
        f"{job_name(plan.run_id)} starts on {count(len(ready), 'host')}"
        f"{stands_by if spare > 0 else ''}{without}{where}"
    )


def _detached(state: Launch) -> list[Effect]:
    asked, least = state.asked, state.asked.plan.least
    started = {name: state.started[name] for name in state.those(HostPart.DETACHED)}
    lines: list[str] = []
    if started:
        lines += detached_lines(asked.plan, started, state.where, asked.summary)
    if len(started) >= least:
        return [Print(tuple(lines)), _over(state, 0)]
    then = ": they wait for others until join_timeout" if started else ""
    told = f"agents run on {count(len(started), 'host')}, and --nodes needs {least}{then}"
    return [Print((*lines, f"rallypoint: {told}")), _over(state, _not_enough_code(state))]


def _end(state: Launch) -> list[Effect]:
    """Return the effects that end this command, with the exit code of the surest summary.

    Where too few hosts were left, their code stays, unless the agent of that summary has seen how
    the job ended. Without a summary it is that code, else a signal's, else 75.
    """
    code = state.ending_code or ExitClass.INFRASTRUCTURE.value
    if state.caught and not state.ending_code:
        code = SIGNALLED + state.caught[0]
    best = surest(state.said.values())
    if best is None:
        told = "rallypoint: no agent reported how the job ended"
        return [Print((told,)), _over(state, code)]
    same = [n for n in state.parts if n in state.said and state.said[n].outcome == best.outcome]
    name = next(each for each, said in state.said.items() if said is best)
    if state.parts[name] is HostPart.ENDED or not state.ending_code:
        code = best.exit_code
    others = [ShowLast((each,)) for each in state.parts if each not in same]
    return [ShowLast(tuple(same), as_one_host=False), *others, _over(state, code)]


def _over(state: Launch, code: int) -> Over:
    state.is_over = True
    return Over(code, 0.0 if state.caught else BEAT_S)


def _not_enough_code(state: Launch) -> int:
    """Return the exit code where too few hosts are there: 2 or 75.

    2 if each host that is gone has a mistake, which a retry would meet again; else 75.
    """
    is_mistake = state.mistakes == len(state.those(HostPart.GONE))
    code: int = (ExitClass.USAGE if is_mistake else ExitClass.INFRASTRUCTURE).value
    return code


def _said(name: str, end: wire.AgentEnded) -> SummaryRead | None:
    if end.summary:
        with suppress(UnreadableJsonError):
            return read_said(end.summary)
    if end.code == ExitClass.USAGE.value:
        return SummaryRead(Outcome.USAGE.value, end.code, "wrong usage", name, 0)
    return None


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("", "::1")
