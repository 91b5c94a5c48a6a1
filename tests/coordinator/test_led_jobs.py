"""The jobs that a coordinator leads by registers, and the agents that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from tests.harness.limits import patience

from rallypoint.coordinator import jobs
from rallypoint.coordinator.candidates import UNUSED_S, Candidates
from rallypoint.coordinator.connection import ServerConnection
from rallypoint.coordinator.hosting import HistorySink, Hosting, random_epoch
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.led_jobs import LedJobs
from rallypoint.core import messages as m
from rallypoint.core.event_kinds import Record
from rallypoint.core.model import Candidate, Epoch, Outcome, Promise, SharedSettings, epoch_number
from rallypoint.core.takeover.consent import NO_ROUND
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.speakers import candidate
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.watch.questions import Subject
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.record import Register, encode
from rallypoint.wire.versions import SPOKEN

SETTINGS = SharedSettings("job", 2, 2)


class Connection:
    """To one agent, that keeps what it is told."""

    def __init__(self, number: int) -> None:
        self.number, self.peer, self.owner = number, "host:1", None
        self.is_closed = self.ended_by_peer = False
        self.version = SPOKEN.newest
        self.sent: list[m.ToAgent] = []
        self.is_told = asyncio.Event()

    def send(self, message: m.ToAgent) -> None:
        self.sent.append(message)
        self.is_told.set()

    def close(self) -> None:
        self.is_closed = True

    async def told(self, kind: type[Any]) -> Any:
        """The first message of this kind."""
        while True:
            if found := [message for message in self.sent if isinstance(message, kind)]:
                return found[0]
            self.is_told.clear()
            await self.is_told.wait()


class Host:
    """One coordinator."""

    def __init__(self, register: Register, history: HistorySink | None = None) -> None:
        self.waits: list[str] = []
        self.records: list[str] = []
        self.led = LedJobs(lambda _: register, ("h:1",), lambda _, text: self.waits.append(text))
        self.jobs = HostedJobs(Hosting(self.record, led=self.led, history=history))
        self._connections = 0

    def record(self, _: str, record: Record) -> None:
        self.records.append(record.text)

    def attach(self, hello: m.Attach) -> Connection:
        self._connections += 1
        connection = Connection(self._connections)
        self.jobs.attach(cast("ServerConnection", connection), "job", hello)
        return connection

    def ask(self, question: m.DrainNode | m.Ask) -> Connection:
        """As a person."""
        self._connections += 1
        connection = Connection(self._connections)
        self.jobs.asked(cast("ServerConnection", connection), "job", question)
        return connection

    def hang_up(self, connection: Connection) -> None:
        assert connection.owner is not None
        connection.owner.connection_closed(connection)

    def say(self, connection: Connection, number: int, report: m.Report) -> None:
        job = connection.owner
        assert job is not None
        job.received(connection, m.Numbered(number, report))

    async def close(self) -> None:
        self.jobs.close()
        await self.led.vacate()


def run(
    register: Register,
    test: Callable[[Host], Awaitable[None]],
    history: HistorySink | None = None,
) -> None:
    async def whole() -> None:
        host = Host(register, history)
        async with asyncio.timeout(patience(60)):
            await test(host)
            await host.close()

    asyncio.run(whole())


def fresh(incarnation: str, generation: int = 1) -> m.Attach:
    return m.Attach("a", "a", incarnation, generation, SETTINGS)


class BrokenFile:
    """A history that can't be written, as nobody has expected."""

    is_light = False

    def write(self, run_id: str, line: object) -> None:
        raise ValueError("of its own")

    def tell_faults(self, call_soon: object, on_record: object) -> None:
        pass


def test_a_history_that_can_not_be_kept_keeps_no_agent_from_its_job() -> None:
    """Neither when the job begins nor when another coordinator takes it over."""
    register = MemoryRendezvousBackend()

    async def test(host: Host) -> None:
        await host.attach(fresh("x")).told(m.Attached)
        said = "the history of the job can't be kept: unexpected ValueError (of its own)"
        assert any(said in text for text in host.records)

    for _ in range(2):
        run(register, test, BrokenFile())


def test_who_nobody_can_take_over_from_has_the_lowest_epoch() -> None:
    assert {epoch_number(random_epoch()) for _ in range(100)} == {0}


def test_L1_agents_of_a_job_that_can_not_be_led_are_refused_whatever_its_register_raises() -> None:
    class Broken(MemoryRendezvousBackend):
        def get_state(self) -> None:
            raise ValueError("of its own")

    async def test(host: Host) -> None:
        refused = await host.attach(fresh("x")).told(m.Refused)
        assert "can't lead the job: unexpected ValueError (of its own)" in refused.text

    run(Broken(), test)


def test_L1_of_an_agent_that_dials_again_only_the_newest_connection_waits() -> None:
    async def test(host: Host) -> None:
        connections = [host.attach(fresh("x", generation)) for generation in range(1, 4)]
        await connections[-1].told(m.Attached)
        assert [connection.sent for connection in connections[:-1]] == [[], []]

    run(MemoryRendezvousBackend(), test)


def test_L7_the_verdict_of_a_former_life_is_told_in_the_epoch_that_leads() -> None:
    async def test(host: Host) -> None:
        first = host.attach(fresh("x"))
        attached = await first.told(m.Attached)
        host.say(first, 1, m.Join(1, Candidate(1, "default", "a", 29500)))
        host.say(first, 2, m.Cancel("a person", 2))
        assert (await first.told(m.Ended)).verdict.outcome is Outcome.CANCELLED
        host.say(first, 3, m.Leave())
        await host.attach(fresh("y")).told(m.Attached)
        late = replace(
            fresh("z", 2),
            opened=1,
            last_incarnation=attached.incarnation,
            last_epoch=attached.epoch,
        )
        found = await host.attach(late).told(m.Attached)
        assert found.incarnation == attached.incarnation
        assert found.epoch == attached.epoch

    run(MemoryRendezvousBackend(), test)


def test_what_a_deserted_job_has_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = asyncio.Event()
    loop: asyncio.AbstractEventLoop

    async def test(host: Host) -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        agent = host.attach(fresh("x"))
        await agent.told(m.Attached)
        assert len(list(tmp_path.iterdir())) == 1
        monkeypatch.setattr(jobs, "VERDICT_RETENTION_S", 0.0)
        host.say(agent, 1, m.Leave())
        await removed.wait()
        assert list(tmp_path.iterdir()) == []

    class Told(DirectoryBackend):
        def remove(self, token: Token) -> bool:
            found = super().remove(token)
            loop.call_soon_threadsafe(removed.set)
            return found

    run(Told(str(tmp_path), "job"), test)


def test_a_job_that_is_asked_for_while_it_is_removed_begins_anew_or_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(host: Host) -> None:
        agent = host.attach(fresh("x"))
        await agent.told(m.Attached)
        for name in "abcdefgh":
            host.led.remove("job")
            host.jobs._jobs.pop("job").close()
            agent = host.attach(fresh(name))
            await agent.told(m.Attached)
            host.say(agent, 1, m.Join(1, Candidate(1, "default", "a", 29500)))
            await agent.told(m.Ack)

    run(DirectoryBackend(str(tmp_path), "job"), test)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello", "was not written by Rallypoint"),
        (b"rallypoint register\n\0\2", "was written by a newer Rallypoint"),
        (b"rallypoint register\n\0\1", "is corrupt"),
    ],
)
def test_L1_agents_of_a_register_that_can_not_be_read_are_refused_and_it_stays_as_it_is(
    tmp_path: Path, content: bytes, said: str
) -> None:
    [first] = _first(tmp_path)
    first.write_bytes(content)

    async def test(host: Host) -> None:
        refused = await host.attach(fresh("x")).told(m.Refused)
        assert refused.text.startswith(f"{first} {said}")
        assert "\n" not in refused.text
        assert "use another" in refused.text or "use that version" in refused.text

    run(DirectoryBackend(str(tmp_path), "job"), test)
    assert _first(tmp_path) == [first]
    assert first.read_bytes() == content


def test_L1_agents_with_another_token_than_the_register_are_refused(tmp_path: Path) -> None:
    [first] = _first(tmp_path)
    before = first.read_bytes()

    async def test(host: Host) -> None:
        refused = await host.attach(fresh("x")).told(m.Refused)
        assert "without a token: start all nodes with the same token" in refused.text

    run(DirectoryBackend(str(tmp_path), "job", b"token"), test)
    assert first.read_bytes() == before


def _first(directory: Path) -> list[Path]:
    """The first version of the register, which is made if there is none."""
    register = DirectoryBackend(str(directory), "job")
    if not list(directory.iterdir()):
        register.set_state(b"record")
    return list(directory.glob("*/first"))


def test_L1_an_agent_that_comes_to_a_candidate_need_not_wait_for_a_claim_of_that() -> None:
    """The leader before was no node: agents that go to an address of their own have no other."""
    register = MemoryRendezvousBackend()
    gone = Leader(("h:2",), Process("boot", 1, 1))
    job = JobRecord(SETTINGS, 1)
    register.set_state(encode(LeadRecord(1, Epoch(1, 1), gone, 0, job, is_vacant=True)))

    async def test(host: Host) -> None:
        candidates = Candidates(host.led, host.jobs, lambda: ["job"], None)
        while host.led.stand_ready("job", Deference()) is not None:
            host.led.settle("job")
            await asyncio.sleep(0)
        connection = host.attach(fresh("life"))
        async with asyncio.timeout(UNUSED_S / 2):  # Then it would leave the job alone anyway.
            assert (await connection.told(m.Attached)).is_replaceable
        candidates.close()

    run(register, test)


def test_V6_an_agent_is_asked_for_lines_once_it_was_told_that_it_is_attached() -> None:
    """Before that it listens to nothing else, and would not be asked again."""
    may_write = threading.Event()
    may_write.set()

    class Slow(MemoryRendezvousBackend):
        def set_state(self, state: bytes, token: Token | None = None) -> Any:
            assert may_write.wait(patience(60))
            return super().set_state(state, token)

    async def test(host: Host) -> None:
        first = host.attach(fresh("x"))
        await first.told(m.Attached)
        second = host.attach(replace(fresh("y"), node_id="b"))
        await second.told(m.Attached)
        for agent in (first, second):
            host.say(agent, 1, m.Join(1, Candidate(1, "default", "a", 29500)))
        stamp = (await first.told(m.Assigned)).stamp
        host.ask(m.Ask(Subject.LOGS, follow=True))
        await first.told(m.Collect)
        may_write.clear()
        host.say(second, 2, m.Succeeded(stamp))  # That is to be recorded first.
        host.hang_up(first)
        claim = m.Claim(m.Doing.RUNNING, stamp)
        again = host.attach(replace(fresh("x", 2), opened=1, claim=claim))
        look = host.jobs.all[0].watch.gatherings.look
        look()
        assert again.sent == []
        may_write.set()
        await again.told(m.Attached)
        look()
        await again.told(m.Collect)

    run(Slow(), test)


def test_L1_a_leader_to_whose_address_nodes_go_lists_no_candidate() -> None:
    heartbeat = m.Heartbeat(1, Promise(0, NO_ROUND, 0, candidate=7))
    speaker = candidate(1, 7)

    async def led_for_an_agent(host: Host) -> None:
        leadership = await host.led.lead("job")
        assert not leadership.candidate_heard(heartbeat, speaker)
        assert leadership.lead.candidates == ()

    async def led_by_a_candidate(host: Host) -> None:
        leadership = host.led.stand_ready("job", Deference())
        assert leadership is not None
        assert await leadership.take((await leadership.look()).record)
        host.led.settle("job", leadership)
        assert leadership.candidate_heard(heartbeat, speaker)
        assert leadership.lead.candidates == (7,)

    for test in (led_for_an_agent, led_by_a_candidate):
        run(MemoryRendezvousBackend(), test)
