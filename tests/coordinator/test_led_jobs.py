"""The jobs that a coordinator leads by registers, and the agents that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.harness.faulty_register import AtOnce, FaultyRegister
from tests.harness.handshakes import new_server
from tests.harness.led_jobs import CANDIDATE, SETTINGS, fresh, host_of
from tests.harness.virtual_time import in_virtual_time
from tests.simulator.loop import ProcessLoop

from rallypoint.coordinator.connection import FramedConnection
from rallypoint.coordinator.hosting import Hosting, random_epoch
from rallypoint.coordinator.jobs import HostedJobs
from rallypoint.coordinator.leading.candidates import Candidates
from rallypoint.coordinator.leading.leader_process import LocalLeader, Runtime
from rallypoint.coordinator.leading.leaderships import ManyLeaderships
from rallypoint.core import job_lives
from rallypoint.core import messages as m
from rallypoint.core.model import Epoch, Outcome, Promise, epoch_number
from rallypoint.core.takeover.candidacy import REDIAL_S, UNUSED_S
from rallypoint.core.takeover.consent import NO_ROUND
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.speakers import candidate
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.core.watch.questions import Subject
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.directory.backend import DirectoryBackend
from rallypoint.register.record import encode


class BrokenFile:
    """A history that can't be written, as nobody has expected."""

    is_light = False

    def write(self, run_id: str, line: object) -> None:
        raise ValueError("of its own")

    def tell_faults(self, call_soon: object, on_record: object) -> None:
        pass


async def test_a_history_that_can_not_be_kept_keeps_no_agent_from_its_job() -> None:
    """Neither when the job begins nor when another coordinator takes it over."""
    register = MemoryRendezvousBackend()

    for _ in range(2):
        async with host_of(register, BrokenFile()) as host:
            await host.attach(fresh("x")).told(m.Attached)
            said = "the history of the job can't be kept: unexpected ValueError (of its own)"
            assert any(said in text for text in host.records)


def test_who_nobody_can_take_over_from_has_the_lowest_epoch() -> None:
    assert {epoch_number(random_epoch()) for _ in range(100)} == {0}


class Broken(MemoryRendezvousBackend):
    """Fails in a way that nobody has expected."""

    def get_state(self) -> None:
        raise ValueError("of its own")


async def test_L1_agents_are_refused_whatever_the_register_of_their_job_raises() -> None:
    async with host_of(Broken()) as host:
        refused = await host.attach(fresh("x")).told(m.Refused)
        assert "can't lead the job: unexpected ValueError (of its own)" in refused.text


async def test_L1_of_an_agent_that_dials_again_only_the_newest_connection_waits() -> None:
    async with host_of(MemoryRendezvousBackend()) as host:
        connections = [host.attach(fresh("x", generation)) for generation in range(1, 4)]
        await connections[-1].told(m.Attached)
        assert [connection.sent for connection in connections[:-1]] == [[], []]


async def test_L7_the_verdict_of_a_former_life_is_told_in_the_epoch_that_leads() -> None:
    async with host_of(MemoryRendezvousBackend()) as host:
        first = host.attach(fresh("x"))
        attached = await first.told(m.Attached)
        host.say(first, 1, m.Join(1, CANDIDATE))
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


async def test_what_a_deserted_job_has_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, loop = asyncio.Event(), asyncio.get_running_loop()

    class Told(DirectoryBackend):
        def remove(self, token: Token) -> bool:
            found = super().remove(token)
            loop.call_soon_threadsafe(removed.set)
            return found

    async with host_of(Told(str(tmp_path), "job")) as host:
        agent = host.attach(fresh("x"))
        await agent.told(m.Attached)
        assert len(list(tmp_path.iterdir())) == 1
        monkeypatch.setattr(job_lives, "VERDICT_RETENTION_S", 0.0)
        host.say(agent, 1, m.Leave())
        await removed.wait()
        assert list(tmp_path.iterdir()) == []


async def test_a_job_that_is_asked_for_while_it_is_removed_begins_anew_or_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host_of(DirectoryBackend(str(tmp_path), "job")) as host:
        agent = host.attach(fresh("x"))
        await agent.told(m.Attached)
        for name in "abcdefgh":
            host.led.remove("job")
            host.jobs._jobs.pop("job").close()
            agent = host.attach(fresh(name))
            await agent.told(m.Attached)
            host.say(agent, 1, m.Join(1, CANDIDATE))
            await agent.told(m.Ack)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"hello", "was not written by Rallypoint"),
        (b"rallypoint register\n\0\2", "was written by a newer Rallypoint"),
        (b"rallypoint register\n\0\1", "is corrupt"),
    ],
)
async def test_L1_agents_of_a_register_that_can_not_be_read_are_refused_and_it_stays_as_it_is(
    tmp_path: Path, content: bytes, said: str
) -> None:
    [first] = _first(tmp_path)
    first.write_bytes(content)

    async with host_of(DirectoryBackend(str(tmp_path), "job")) as host:
        refused = await host.attach(fresh("x")).told(m.Refused)
        assert refused.text.startswith(f"{first} {said}")
        assert "\n" not in refused.text
        assert "use another" in refused.text or "use that version" in refused.text
    assert _first(tmp_path) == [first]
    assert first.read_bytes() == content


async def test_L1_agents_with_another_token_than_the_register_are_refused(tmp_path: Path) -> None:
    [first] = _first(tmp_path)
    before = first.read_bytes()

    async with host_of(DirectoryBackend(str(tmp_path), "job", b"token")) as host:
        refused = await host.attach(fresh("x")).told(m.Refused)
        assert "without a token: start all nodes with the same token" in refused.text
    assert first.read_bytes() == before


def _first(directory: Path) -> list[Path]:
    """The first version of the register, which is made if there is none."""
    register = DirectoryBackend(str(directory), "job")
    if not list(directory.iterdir()):
        register.set_state(b"record")
    return list(directory.glob("*/first"))


async def test_L1_an_agent_that_comes_to_a_candidate_need_not_wait_for_a_claim_of_that() -> None:
    """The leader before was no node: agents that go to an address of their own have no other."""
    register = MemoryRendezvousBackend()
    gone = Leader(("h:2",), Process("boot", 1, 1))
    job = JobRecord(SETTINGS, 1)
    register.set_state(encode(LeadRecord(1, Epoch(1, 1), gone, 0, job, is_vacant=True)))

    async with host_of(register) as host:
        candidates = Candidates(host.led, host.jobs, lambda: ["job"], None)
        while host.led.stand_ready("job", Deference()) is not None:
            host.led.settle("job")
            await asyncio.sleep(0)
        connection = host.attach(fresh("life"))
        async with asyncio.timeout(UNUSED_S / 2):  # Then it would leave the job alone anyway.
            assert (await connection.told(m.Attached)).is_replaceable
        candidates.close()


async def test_V6_an_agent_is_asked_for_lines_once_it_was_told_that_it_is_attached() -> None:
    """Before that it listens to nothing else, and would not be asked again."""
    register = FaultyRegister()
    async with host_of(register) as host:
        first = host.attach(fresh("x"))
        await first.told(m.Attached)
        second = host.attach(replace(fresh("y"), node_id="b"))
        await second.told(m.Attached)
        for agent in (first, second):
            host.say(agent, 1, m.Join(1, CANDIDATE))
        stamp = (await first.told(m.Assigned)).stamp
        host.ask(m.Ask(Subject.LOGS, follow=True))
        await first.told(m.Collect)
        register.may_write.clear()
        host.say(second, 2, m.Succeeded(stamp))  # That is to be recorded first.
        host.hang_up(first)
        claim = m.Claim(m.Doing.RUNNING, stamp)
        again = host.attach(replace(fresh("x", 2), opened=1, claim=claim))
        look = host.jobs.all[0].watch.gatherings.check_deadlines
        look()
        assert again.sent == []
        register.may_write.set()
        await again.told(m.Attached)
        look()
        await again.told(m.Collect)


async def test_L1_a_leader_to_whose_address_nodes_go_lists_no_candidate() -> None:
    heartbeat = m.Heartbeat(1, Promise(0, NO_ROUND, 0, candidate=7))
    speaker = candidate(1, 7)
    async with host_of(MemoryRendezvousBackend()) as host:
        leadership = await host.led.lead("job")
        assert not leadership.candidate_heard(heartbeat, speaker)
        assert leadership.lead.candidates == ()
    async with host_of(MemoryRendezvousBackend()) as host:
        leadership = await host.lead_as_candidate()
        assert leadership.candidate_heard(heartbeat, speaker)
        assert leadership.lead.candidates == (7,)


class SilentLeader(asyncio.Transport):
    """The connection of a candidate to a leader that says nothing but who it is."""

    def __init__(self, candidate: FramedConnection) -> None:
        super().__init__()
        self._candidate, self._handshake = candidate, new_server(None, insecure=True)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return "10.0.0.1", 29400

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._handshake.result is None:
            said = self._handshake.feed(bytes(data))
            asyncio.get_running_loop().call_soon(self._candidate.data_received, said)

    def breaks(self) -> None:
        self._candidate.connection_lost(None)

    def close(self) -> None:
        pass

    abort = close


class Leaders:
    """The network, with a leader at each address."""

    def __init__(self) -> None:
        self.connections: list[SilentLeader] = []

    async def dial(
        self, loop: ProcessLoop, make: Callable[[], FramedConnection], host: str, port: int
    ) -> asyncio.Transport:
        candidate = make()
        self.connections.append(SilentLeader(candidate))
        candidate.connection_made(self.connections[-1])
        return self.connections[-1]


def test_L1_a_candidate_whose_connection_to_the_leader_breaks_connects_again() -> None:
    network, register = Leaders(), FaultyRegister()
    leader = Leader(("10.0.0.1:29400",), Process("boot", 1, 1), has_workers=True)
    register.put(encode(LeadRecord(1, Epoch(1, 1), leader, 0, JobRecord(SETTINGS, 1))))

    async def body() -> None:
        runtime = Runtime(asyncio.get_running_loop().time, lambda process, own: False)
        local = LocalLeader(Process("boot", 2, 1), AtOnce(), runtime)
        led = ManyLeaderships(lambda run_id: register, (), lambda run_id, text: None, local)
        jobs = HostedJobs(Hosting(lambda run_id, record: None, led=led))
        candidates = Candidates(led, jobs, lambda: ["job"], None)
        await asyncio.sleep(3 * REDIAL_S)
        assert len(network.connections) == 1
        network.connections[0].breaks()
        await asyncio.sleep(3 * REDIAL_S)
        assert len(network.connections) == 2
        candidates.close()
        jobs.close()

    in_virtual_time(body, network)
