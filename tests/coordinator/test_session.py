"""An agent's session with a real coordinator, over a wire that is cut and mended."""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace
from tests.harness.narrowed import known, only
from tests.harness.proxy import Proxy
from tests.harness.sessions import CANDIDATE, LIMIT_S, TOKEN, Rally, rally

from rallypoint.clocks import WakeSelector, new_loop
from rallypoint.coordinator.client.session import CoordinatorSession, Hooks
from rallypoint.coordinator.connection import ClientConnection, dial
from rallypoint.core import messages as m
from rallypoint.core.model import Outcome, SharedSettings
from rallypoint.core.node.events import LeaseEnded, SessionGivenUp, SessionOpened
from rallypoint.core.session import (
    Acknowledged,
    AgentEnd,
    Identity,
    OrderPushed,
    Rejected,
    SessionNews,
    SessionRules,
    Suspended,
)
from rallypoint.core.worker_exits import WorkerExit
from rallypoint.errors import UsageError
from rallypoint.wire.address import Address

RULES = SharedSettings("job", 1, 1, heartbeat_s=0.05, reconnect_grace_s=30.0, max_restarts=9)
FAILURE = WorkerExit(1, None, role="default", pid=1)


class Agent:
    """Keeps what its session says, and a clock that jumps when told to."""

    def __init__(
        self, rules: SharedSettings, port: int, give_up_s: float, *, has_fence: bool = True
    ) -> None:
        self.said: list[object] = []
        self.whys: list[str] = []
        self.replaced: list[bool] = []
        self.behind_s = 0.0
        self._port, self._rules = port, rules
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.end = AgentEnd(
            Identity("", "host", "life"), rules, SessionRules(give_up_s, has_fence=has_fence)
        )
        self.session = CoordinatorSession(self.end, self.dial, self, self.clock)

    def clock(self) -> float:
        return self._loop.time() + self.behind_s

    async def dial(self) -> ClientConnection:
        return await dial([Address("127.0.0.1", self._port)], self._rules.run_id, TOKEN)

    def claim(self) -> m.Claim:
        return m.Claim()

    def told(self, news: SessionNews) -> None:
        match news:
            case OrderPushed(m.HeartbeatAck()):
                if "beat" not in self.said[-1:]:
                    self.said.append("beat")
            case OrderPushed(message):
                self.said.append(message)
            case SessionOpened(resumed, replaced):
                self.said.append(("opened", resumed))
                self.replaced.append(replaced)
            case Suspended(why):
                self.said.append("suspended")
                self.whys.append(why)
            case SessionGivenUp(why):
                self.said.append(("given up", why))
            case Rejected(error):
                self.said.append(error)
            case LeaseEnded():
                self.said.append("fenced")
            case Acknowledged(report):
                self.said.append(("acknowledged", report))

    def said_of(self, kind: type) -> list[object]:
        return [one for one in self.said if isinstance(one, kind)]

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    async def wait_assigned(self, round_: int = 0) -> m.Assigned:
        """The world of this round, which is told again on every new connection."""

        def told() -> list[m.Assigned]:
            worlds = [one for one in self.said if isinstance(one, m.Assigned)]
            return [world for world in worlds if world.assignment.round == round_]

        await self.wait(told)
        return told()[-1]

    async def wait_said(self, what: object, count: int = 1) -> None:
        await self.wait(lambda: self.said.count(what) >= count)


@asynccontextmanager
async def agent_of(
    place: Rally,
    port: int,
    rules: SharedSettings = RULES,
    give_up_s: float = 0.0,
    *,
    has_fence: bool = True,
) -> AsyncIterator[Agent]:
    agent = Agent(rules, port, give_up_s, has_fence=has_fence)
    agent.session.open(await agent.dial())
    try:
        yield agent
    finally:
        agent.session.abort()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def agent_behind_proxy(
    rules: SharedSettings, give_up_s: float = 0.0
) -> AsyncIterator[tuple[Rally, Proxy, Agent]]:
    """The proxy may break its connection to the coordinator."""
    async with rally(rules) as place:
        with Proxy(place.port) as proxy:
            async with agent_of(place, proxy.port, rules, give_up_s) as agent:
                await agent.wait_said(("opened", False))
                yield place, proxy, agent


async def test_reports_survive_a_cut_connection_in_their_order() -> None:
    async with agent_behind_proxy(RULES) as (place, proxy, agent):
        join = m.Join(1, CANDIDATE)
        agent.session.report(join)
        await agent.wait_said(("acknowledged", join))
        first = await agent.wait_assigned()
        await asyncio.to_thread(proxy.cut)
        await agent.wait_said("suspended")
        reports: list[m.Report] = [
            m.Failed(first.stamp, (FAILURE,)),
            m.Join(2, CANDIDATE),
        ]
        for report in reports:
            agent.session.report(report)
        proxy.mend()
        second = await agent.wait_assigned(1)
        assert second.assignment.restart_count == 1, "the join was heard first"
        await agent.wait_said(("acknowledged", reports[-1]))
        assert ("opened", True) in agent.said
        acknowledged = [s for s in agent.said if ("acknowledged", reports[0]) == s]
        assert len(acknowledged) == 1
        for report in (m.Finishing(second.stamp), m.Succeeded(second.stamp)):
            agent.session.report(report)
        await agent.wait(lambda: agent.said_of(m.Ended))
        ended = only(m.Ended, agent.said_of(m.Ended))
        assert ended.verdict.outcome is Outcome.SUCCEEDED
        agent.session.report(m.Leave())
        await agent.session.close(LIMIT_S)
        await place.coordinator.jobs.wait_empty()


async def test_a_session_is_closed_as_soon_as_its_last_report_is_acknowledged() -> None:
    async with rally(RULES) as place, agent_of(place, place.port) as agent:
        join = m.Join(1, CANDIDATE)
        await agent.wait_said(("opened", False))
        agent.session.report(join)
        async with asyncio.timeout(LIMIT_S):
            await agent.session.close(10 * LIMIT_S)
        assert ("acknowledged", join) in agent.said


async def test_F2_a_connection_that_was_reset_may_come_back_when_an_ended_one_is_lost() -> None:
    rules = replace(RULES, max_nodes=2, reconnect_grace_s=0.01, reset_grace_s=30.0)
    async with agent_behind_proxy(rules) as (place, proxy, agent):
        other = await place.attached(rules, "other life", node_id="other")
        other.join()
        await other.wait(m.Ack, 2)
        await asyncio.to_thread(proxy.reset)
        [job] = place.coordinator.jobs._jobs.values()
        session = known(job._sessions.of_agent("life"))
        await agent.wait(lambda: session.connection is None)
        other.wire.abort()
        await place.wait_record("node other was lost")
        proxy.mend()
        await agent.wait_said(("opened", True))


async def test_only_a_node_that_did_not_hang_up_itself_waits_before_it_comes_back() -> None:
    """For the part that it draws of what it was told: thousands must not come back at once."""
    drawn: list[tuple[float, float]] = []

    def uniform(least: float, most: float) -> float:
        drawn.append((least, most))
        return least

    async with rally(RULES) as place:
        with Proxy(place.port) as proxy:
            agent = Agent(RULES, proxy.port, 0.0)
            hooks = Hooks(uniform=uniform)
            agent.session = CoordinatorSession(agent.end, agent.dial, agent, hooks=hooks)
            agent.session.open(await agent.dial())
            await agent.wait_said(("opened", False))
            agent.session.reconnect("by itself")
            await agent.wait_said(("opened", True))
            assert drawn == []
            await asyncio.to_thread(proxy.reset)
            proxy.mend()
            await agent.wait_said(("opened", True), 2)
            assert drawn[0] == (0.0, agent.end.spread_s)
            assert agent.end.spread_s > 0
            agent.session.abort()
            await asyncio.sleep(0.01)


async def test_F1_a_report_made_while_attaching_waits_for_those_before_it() -> None:
    async with rally(RULES) as place:
        agent = Agent(RULES, place.port, 0.0)
        wires: list[ClientConnection] = []
        last: list[m.Report] = []

        async def watched() -> ClientConnection:
            wires.append(await agent.dial())
            if len(wires) == 2:  # runs when the session has attached and awaits the answer
                asyncio.get_running_loop().call_soon(agent.session.report, last[0])
            return wires[-1]

        agent.session._dial = watched
        agent.session.open(await watched())
        await agent.wait_said(("opened", False))
        agent.session.report(m.Join(1, CANDIDATE))
        assigned = await agent.wait_assigned()
        last.append(m.Join(2, CANDIDATE))
        wires[0].abort()
        agent.session.report(m.Failed(assigned.stamp, (FAILURE,)))
        await agent.wait_said(("acknowledged", last[0]))
        again = await agent.wait_assigned(1)
        assert again.assignment.restart_count == 1, "the failure was heard before the join"
        agent.session.abort()
        await asyncio.sleep(0.01)


async def test_F1_a_coordinator_that_knows_nothing_is_told_nothing_of_the_past() -> None:
    rules = replace(RULES, reconnect_grace_s=0.01)
    async with agent_behind_proxy(rules) as (place, proxy, agent):
        agent.session.report(m.Join(1, CANDIDATE))
        assigned = await agent.wait_assigned()
        await asyncio.to_thread(proxy.cut)
        await agent.wait_said("suspended")
        await place.wait_record("was lost")
        past = m.Succeeded(assigned.stamp)
        agent.session.report(past)
        proxy.mend()
        await agent.wait_said(("opened", False), 2)
        join = m.Join(2, CANDIDATE)
        agent.session.report(join)
        await agent.wait_said(("acknowledged", join))
        assert ("acknowledged", past) not in agent.said
        assert agent.replaced == [False, False], "it is the same coordinator"
        assert agent.said_of(m.Ended) == []
        assert agent.session.node_id == "host-0"


def test_F2_the_clock_is_looked_at_when_the_wait_is_over_not_before_it() -> None:
    ours, theirs = socket.socketpair()
    begins, is_late, seen = threading.Event(), threading.Event(), list[bool]()
    waiter = Path(f"/proc/self/task/{threading.get_native_id()}/stat")

    def let_time_pass_and_write() -> None:
        begins.wait(LIMIT_S)
        while waiter.read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.001)
        is_late.set()
        theirs.send(b"x")

    with ours, theirs, WakeSelector() as selector:
        selector.register(ours, selectors.EVENT_READ)
        selector.watch(lambda: seen.append(is_late.is_set()))
        other = threading.Thread(target=let_time_pass_and_write)
        other.start()
        begins.set()
        [(key, _)] = selector.select(LIMIT_S)
        other.join()
    assert key.fileobj is ours
    assert seen == [True]


def in_wakeful_loop(body: Callable[[WakeSelector], Coroutine[object, object, None]]) -> None:
    """As that of an agent."""
    loop, selector = new_loop()
    try:
        loop.run_until_complete(body(selector))
    finally:
        loop.close()


def test_F2_the_fence_is_seen_before_what_arrived_meanwhile() -> None:
    async def body(selector: WakeSelector) -> None:
        async with rally(RULES) as place, agent_of(place, place.port) as agent:
            selector.watch(agent.session.check_fence)
            await agent.wait_said("beat")
            assert "fenced" not in agent.said
            agent.behind_s = RULES.lease_s + 1.0  # asleep for so long, with a full inbox
            await agent.wait_said("fenced")
            at = agent.said.index("fenced")
            assert agent.said[at - 1] == "beat"
            agent.said.clear()
            await agent.wait_said("beat")
            assert "fenced" not in agent.said, "a renewed lease is no longer over"
            agent.behind_s *= 2
            await agent.wait_said("fenced")
            selector.watch(None)

    in_wakeful_loop(body)


async def test_F2_a_renewal_that_is_read_after_the_lease_has_ended_comes_too_late() -> None:
    """An agent that was stopped between its wake-up and the reading: the guard kept the fence."""
    async with rally(RULES) as place, agent_of(place, place.port) as agent:
        await agent.wait_said("beat")
        agent.said.clear()
        agent.behind_s = RULES.lease_s + 1.0
        await agent.wait_said("beat")
        assert agent.said[0] == "fenced"


def test_F2_nobody_is_fenced_whose_place_nobody_can_take() -> None:
    async def body(selector: WakeSelector) -> None:
        async with (
            rally(RULES) as place,
            agent_of(place, place.port, has_fence=False) as agent,
        ):
            selector.watch(agent.session.check_fence)
            await agent.wait_said("beat")
            agent.behind_s = RULES.lease_s + 1.0
            for later in range(3):
                agent.said.append(later)
                await agent.wait_said("beat", later + 2)
            assert "fenced" not in agent.said
            selector.watch(None)

    in_wakeful_loop(body)


def test_F2_without_a_word_the_lease_ends_and_the_agent_gives_up() -> None:
    async def body(selector: WakeSelector) -> None:
        async with agent_behind_proxy(RULES, give_up_s=0.0) as (_, proxy, agent):
            selector.watch(agent.session.check_fence)
            await agent.wait_said("beat")
            await asyncio.to_thread(proxy.cut)
            await agent.wait_said("suspended")
            assert "fenced" not in agent.said
            agent.behind_s = RULES.lease_s + 1.0
            await agent.wait(lambda: any("given up" in str(one) for one in agent.said))
            assert agent.said.count("fenced") == 1
            assert agent.said.index("fenced") < len(agent.said) - 1
            selector.watch(None)

    in_wakeful_loop(body)


async def test_F1_what_another_coordinator_says_is_dropped() -> None:
    async with rally(RULES) as place, agent_of(place, place.port) as agent:
        await agent.wait_said("beat")
        ours = agent.session.stamp(0)
        connection = known(agent.session._connection)
        for stamp in (replace(ours, incarnation=9), replace(ours, incarnation=10)):
            connection._deliver(m.Expelled(stamp, "not for you", True))
            connection._deliver(m.StartNow(stamp))
        assert agent.said_of(m.Expelled) == agent.said_of(m.StartNow) == []
        connection._deliver(m.StartNow(ours))
        assert agent.said_of(m.StartNow) == [m.StartNow(ours)]


async def test_an_error_of_the_system_in_an_agents_code_is_not_a_lost_connection() -> None:
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    async with rally(RULES) as place:
        agent = Agent(RULES, place.port, 0.0)
        error = PermissionError(errno.EPERM, "Operation not permitted")
        told = agent.told

        def fails(news: SessionNews) -> None:
            told(news)
            if isinstance(news, SessionOpened):
                raise error

        agent.told = fails  # type: ignore[method-assign]
        agent.session.open(await agent.dial())
        await agent.wait(lambda: errors)
        agent.session.abort()
    assert errors[0] is error


async def test_R7_a_refusal_ends_the_session() -> None:
    other = replace(RULES, max_restarts=1)
    async with rally(RULES) as place, agent_of(place, place.port, other) as agent:
        await agent.wait(lambda: agent.said_of(UsageError))
        assert "max_restarts=1" in str(agent.said_of(UsageError)[0])
        assert "suspended" not in agent.said


async def test_F2_a_connection_that_went_deaf_is_replaced_while_the_lease_lasts() -> None:
    async with agent_behind_proxy(RULES) as (_, proxy, agent):
        await agent.wait_said("beat")
        proxy.deafen()
        agent.behind_s += RULES.lease_s * 0.4
        await agent.wait(lambda: len(agent.end._lease._beats_sent) > 1)
        agent.behind_s += RULES.lease_s * 0.4
        await agent.wait_said(("opened", True))
        assert agent.whys[0].startswith("no answer from the coordinator for ")
        agent.said.append("again")
        await agent.wait_said("beat", 2)
        agent.behind_s += RULES.lease_s * 0.4
        agent.said.append("later")
        await agent.wait_said("beat", 3)
        assert "fenced" not in agent.said
        agent.session.report(m.Leave())
        await agent.session.close(LIMIT_S)


async def test_F2_a_coordinator_that_is_silent_for_ever_is_given_up() -> None:
    async with agent_behind_proxy(RULES) as (_, proxy, agent):
        await agent.wait_said("beat")
        await asyncio.to_thread(proxy.cut_off)
        agent.behind_s += RULES.lease_s + 1
        await agent.wait(lambda: "given up" in str(agent.said))
