"""A promise counts only for the one that makes it: one node with the job's token can't have the
leader act beyond its hold by promises of others (section L2 of the design)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any

import pytest
from msgspec.structs import replace
from tests.harness.faulty_register import FaultyRegister
from tests.harness.leading_process import LeadingProcess
from tests.harness.led_jobs import Host
from tests.harness.narrowed import known
from tests.harness.wires import Wire

from rallypoint.coordinator.hosted_job import HostedJob
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.leading.leader_process import Runtime
from rallypoint.coordinator.leading.leadership import Leadership
from rallypoint.coordinator.server import Coordinator
from rallypoint.core import messages as m
from rallypoint.core.admission import AdmissionLimits
from rallypoint.core.model import Assignment, Candidate, Epoch, Promise, SharedSettings, Stamp
from rallypoint.core.sessions import Sessions
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.consent import NO_ROUND, Promises, Speaker
from rallypoint.core.takeover.heirs import CANDIDATES_MAX, Claimant
from rallypoint.core.takeover.leading import LONELY_S, LONELY_SHARE, Lead
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.errors import MessageError
from rallypoint.register.record import encode
from rallypoint.wire.codec import decode_to_agent, decode_to_coordinator
from rallypoint.wire.codec import encode as encoded

SETTINGS = SharedSettings("job", 1, 4)
ROUND = Stamp(1, 3)
CLAIMED_AT = 100.0
NODES = 4
"""The node with rank 0 leads; the heirs are those with the ranks 1 to 3."""
JOB = JobRecord(SETTINGS, 1, 3, True, True, NODES, leader_rank=0)
PROCESS = Process("boot", 1, 1)


def attach_of(rank: int, generation: int = 1) -> m.Attach:
    """The agent with this rank, whose workers run, comes to the new leader."""
    candidate = Candidate(1, "default", "host", 1)
    assignment = Assignment(3, rank, NODES, rank, NODES, rank, NODES, "host", 1, 0, "", True)
    return m.Attach(
        f"n{rank}",
        "host",
        f"life-{rank}",
        generation,
        SETTINGS,
        opened=1,
        last_incarnation=1,
        last_epoch=Epoch(1, 1).as_int(),
        claim=m.Claim(m.Doing.RUNNING, ROUND),
        place=m.Place(m.Join(1, candidate), assignment),
    )


class Agent:
    """One agent on one connection, which says what the test wants."""

    def __init__(
        self, place: Place, rank: int, generation: int = 1, hello: m.Attach | None = None
    ) -> None:
        self._place, self.rank = place, rank
        self._wire = Wire(place.next_connection())
        place.job.attach(self._wire, hello or attach_of(rank, generation))

    def beat(
        self, answered: int = 0, *, rank: int | None = None, stamp: Stamp = ROUND, **more: Any
    ) -> int:
        """Send a heartbeat with a promise of this rank, its own if None is given. Returns its
        number."""
        self._place.beats += 1
        rank = self.rank if rank is None else rank
        promise = Promise(answered, stamp, rank, **more)
        self._place.job.received(self._wire, m.Heartbeat(self._place.beats, promise))
        return self._place.beats

    def promise(self, **said: Any) -> None:
        """Two heartbeats, of which the second names the answer to the first."""
        self.beat(self.beat(**said), **said)


def promise(agents: Iterable[Agent]) -> None:
    """Each of them does, for itself."""
    for agent in agents:
        agent.promise()


class Place:
    """A node that has taken over the job, and can't write its record from now on."""

    def __init__(self, leadership: Leadership, clock: list[float]) -> None:
        self.leadership, self._clock = leadership, clock
        taken_over = known(leadership.take_over())
        sessions = Sessions(
            taken_over.state, leadership.lead.epoch.as_int(), handover=taken_over.led.handover
        )
        self.job = HostedJob(sessions, lambda record: None, lambda: None, taken_over.led.open_gate)
        self._handover = taken_over.led.handover
        self.beats = self._connections = 0

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    @property
    def lead(self) -> Lead:
        return self.leadership.lead

    @property
    def acts_beyond_its_hold(self) -> bool:
        """Nothing was stored since its claim."""
        return self.lead.is_sure(CLAIMED_AT + HOLD_S)

    @property
    def is_taking_over(self) -> bool:
        return self._handover.recovery is not None

    def close(self) -> None:
        self.job.close()

    def later(self, seconds: float) -> None:
        self._clock[0] += seconds


@asynccontextmanager
async def new_leader() -> AsyncIterator[Place]:
    register, clock = FaultyRegister(), [CLAIMED_AT]
    before = Leader(("host0:1",), PROCESS, has_workers=True)
    register.put(encode(LeadRecord(1, Epoch(1, 1), before, 0, JOB, is_vacant=True)))
    runtime = Runtime(lambda: clock[0], lambda process, own: False)
    process = LeadingProcess(register, 1, runtime, has_workers=True, deference=Deference())
    with closing(process):
        await process.candidacy.look(Claimant(ROUND, 0))
        assert await process.candidacy.take()
        place = Place(process.leadership, clock)
        place.later(HOLD_S / 2)
        yield place
        place.close()


@pytest.fixture
def place() -> AbstractAsyncContextManager[Place]:
    return new_leader()


@pytest.mark.parametrize("is_known", [True, False], ids=["the world runs", "taking over"])
async def test_L2_a_leader_acts_by_the_promises_of_heirs_that_each_makes_itself(
    is_known: bool, place: Place
) -> None:
    agents = [Agent(place, rank) for rank in range(0 if is_known else 1, NODES)]
    assert place.is_taking_over is not is_known
    for agent in agents:
        assert not place.acts_beyond_its_hold
        agent.promise()
    assert place.acts_beyond_its_hold


@pytest.mark.parametrize("is_known", [True, False], ids=["the world runs", "taking over"])
async def test_L2_one_node_can_not_promise_for_other_nodes(is_known: bool, place: Place) -> None:
    agents = [Agent(place, rank) for rank in range(0 if is_known else 1, NODES)]
    *silent, liar = agents
    for rank in range(NODES):
        liar.promise(rank=rank)
    assert not place.acts_beyond_its_hold
    promise(silent)
    assert place.acts_beyond_its_hold


async def test_L2_a_node_promises_for_nobody_before_it_is_known_to_be_of_the_newest_world(
    place: Place,
) -> None:
    """A newcomer that names a place has none, whatever it says."""
    agents = [Agent(place, rank) for rank in range(NODES - 1)]
    promise(agents)
    Agent(place, NODES - 1, hello=m.Attach("n3", "host", "another life", 1, SETTINGS)).promise()
    assert not place.acts_beyond_its_hold


@pytest.mark.parametrize("says", ["old", "new"])
async def test_L2_a_promise_names_an_acknowledgement_of_its_own_connection_while_that_is_the_newest(
    says: str, place: Place
) -> None:
    """Neither counts what is read late of an old connection, nor its acknowledgement on the new."""
    *others, old = (Agent(place, rank) for rank in range(NODES))
    promise(others)
    answered = old.beat()
    new = Agent(place, NODES - 1, generation=2)
    again = (old if says == "old" else new).beat(answered)
    assert not place.acts_beyond_its_hold
    new.beat(again if says == "new" else new.beat())
    assert place.acts_beyond_its_hold


async def test_L2_a_heir_that_connects_anew_keeps_the_promise_that_was_heard(place: Place) -> None:
    """Else a leader whose register is away could not even answer it."""
    agents = [Agent(place, rank) for rank in range(NODES)]
    promise(agents)
    until = place.lead.sure_until
    Agent(place, 1, generation=2).beat()
    assert place.lead.sure_until == until


def test_L2_a_late_promise_is_known_by_its_connection_alone() -> None:
    """Where it is read after the first one of a later connection."""
    lead = Lead(
        LeadRecord(1, Epoch(3, 7), Leader((), PROCESS, True), 0, replace(JOB, nodes=2)), 100.0
    )
    old, new = (Speaker(number, (ROUND, 1, 0)) for number in (1, 2))

    def beat(number: int, answered: int, speaker: Speaker, now: float) -> None:
        lead.heard(m.Heartbeat(number, Promise(answered, ROUND, 1)), now, speaker)

    beat(1, 0, old, 101.0)
    beat(3, 0, new, 105.0)
    beat(2, 1, old, 106.0)
    beat(2, 3, old, 106.0)
    assert not lead.is_sure(100.0 + HOLD_S)
    beat(4, 3, new, 107.0)
    assert lead.is_sure(100.0 + HOLD_S)


async def test_L1_an_agent_is_no_candidate(place: Place) -> None:
    agents = [Agent(place, rank) for rank in range(NODES)]
    for number in range(1, CANDIDATES_MAX + 1):
        agents[1].promise(candidate=number)
        agents[1].promise(rank=0, stamp=NO_ROUND, candidate=number)
    assert place.lead.candidates == ()


def test_L2_an_heir_that_has_seen_a_later_leader_promises_nothing_to_the_one_before() -> None:
    heir = Promises(SETTINGS.lease_s)
    heir.assigned(ROUND, 1)
    record = LeadRecord(1, Epoch(3, 7), Leader((), PROCESS, True), 5, JOB)
    heir.saw(record)
    assert heir.next(0.0, Epoch(3, 7).as_int()) is not None
    heir.saw(replace(record, epoch=Epoch(4, 1), beat=0))
    assert heir.next(0.0, Epoch(3, 7).as_int()) is None
    assert heir.next(0.0, Epoch(4, 1).as_int()) is not None
    heir.saw(record, is_newest=False)  # The register was put back, or this read is an old one.
    assert heir.next(0.0, Epoch(3, 7).as_int()) is None
    heir.saw(None)  # The register holds nothing of the job any more, which may begin anew.
    assert heir.next(0.0, Epoch(1, 7).as_int()) is not None


# Offers


async def test_L2_a_node_offers_to_lead_for_itself_alone(place: Place) -> None:
    """The leader can't write its record, and hands over only to an heir that it knows."""
    agents = [Agent(place, rank) for rank in range(NODES)]
    place.later((LONELY_SHARE - 1 / 2) * HOLD_S)
    for rank in (0, 2, 3):
        agents[1].promise(rank=rank, offers=("host:2",))
        agents[1].promise(rank=77, offers=("host:2",))
    place.later(LONELY_S)
    agents[1].promise(rank=2, offers=("host:2",))
    assert not place.leadership.lead.hand_over(place.leadership.now)
    agents[1].promise(offers=("host:2",))
    place.later(LONELY_S)
    agents[1].promise(offers=("host:2",))
    assert place.leadership.lead.hand_over(place.leadership.now)


@pytest.mark.parametrize(
    "text", ["x:y:z", "host", "host:0", "host:99999", "http://host:1", "", "a b:1"]
)
def test_L2_what_is_no_address_is_refused_with_one_line(text: str) -> None:
    """Neither a leader nor a node dials it."""
    heartbeat = m.Heartbeat(1, Promise(0, ROUND, 1, offers=("10.0.0.1:29400", text)))
    with pytest.raises(MessageError, match=r"^Heartbeat\.promise\.offers = '.*' \(.*\)$"):
        decode_to_coordinator(encoded(heartbeat))
    with pytest.raises(MessageError, match=r"^HandsOver\.addresses = '.*' \(.*\)$"):
        decode_to_agent(encoded(m.HandsOver((text,))))


def test_L2_a_node_with_many_addresses_offers_only_some() -> None:
    heir = Promises(SETTINGS.lease_s)
    heir.assigned(ROUND, 1)
    heir.offer(tuple(f"10.0.{each // 250}.{each % 250 + 1}:29400" for each in range(1000)), 0.0)
    promise = known(heir.next(0.0, Epoch(3, 7).as_int()))
    decode_to_coordinator(encoded(m.Heartbeat(1, promise)))
    heir.handed_over(5, promise.offers)
    assert heir.freed_epoch == 5


# Candidates


class Led(Host):
    """A coordinator of its own that leads the job as a candidate does."""

    def __init__(self) -> None:
        super().__init__(FaultyRegister())
        hosting = Hosting(lambda run_id, record: None, led=self.led)
        self.coordinator = Coordinator([], hosting, None, None, AdmissionLimits(10, 10.0))

    def connect(self) -> Wire:
        self._connections += 1
        wire = Wire(self._connections)
        wire.owner = "job"
        return wire

    def beat(self, wire: Wire, promise: Promise | None) -> None:
        self.coordinator.received(wire, m.Heartbeat(1, promise))


@asynccontextmanager
async def leading_candidate() -> AsyncIterator[Led]:
    made = Led()
    yield made
    made.coordinator.close()
    await made.led.vacate()


@pytest.fixture
def led() -> AbstractAsyncContextManager[Led]:
    return leading_candidate()


def of_candidate(number: int) -> Promise:
    return Promise(0, NO_ROUND, 0, candidate=number)


@pytest.mark.parametrize("said", [of_candidate(8), Promise(0, ROUND, 1), None])
async def test_L1_a_connection_of_a_candidate_speaks_for_that_one_alone(
    said: Promise | None, led: Led
) -> None:
    lead = (await led.lead_as_candidate()).lead
    connection = led.connect()
    led.beat(connection, of_candidate(7))
    assert lead.candidates == (7,)
    assert [type(each) for each in connection.sent] == [m.Ack]
    led.beat(connection, said)
    assert connection.is_closed
    assert lead.candidates == (7,)
    assert len(connection.sent) == 1


async def test_L1_nobody_else_speaks_for_a_candidate_that_the_leader_hears(led: Led) -> None:
    """The number of each is in the job's record, where all nodes read it."""
    lead = (await led.lead_as_candidate()).lead
    first, second = led.connect(), led.connect()
    led.beat(first, of_candidate(7))
    led.beat(second, of_candidate(7))
    assert [len(each.sent) for each in (first, second)] == [1, 1]
    record = LeadRecord(1, Epoch(1, 1), Leader((), PROCESS, True), 0, JOB, candidates=(7,))
    heirs = [Speaker(10 + rank, (ROUND, rank, 0)) for rank in range(1, NODES)]
    own, other = Speaker(1, (NO_ROUND, 0, 7)), Speaker(2, (NO_ROUND, 0, 7))
    for speakers, is_sure in (([*heirs, own, other], True), ([own, *heirs, other], True)):
        lead = Lead(record, 100.0)
        beats(lead, speakers)
        assert lead.is_sure(100.0 + HOLD_S) is is_sure
    lead = Lead(record, 100.0)
    lead.heard(m.Heartbeat(1, of_candidate(7)), 101.0, own)
    beats(lead, [*heirs, other])
    assert not lead.is_sure(100.0 + HOLD_S)


def test_L1_a_candidate_that_is_gone_is_listed_no_more_though_another_has_its_number() -> None:
    leader = Leader((), PROCESS, has_workers=True)
    lead = Lead(LeadRecord(1, Epoch(1, 1), leader, 0, JOB), CLAIMED_AT)
    own, other = Speaker(1, (NO_ROUND, 0, 7)), Speaker(2, (NO_ROUND, 0, 7))
    lead.heard(m.Heartbeat(1, of_candidate(7)), 101.0, own)
    for second in range(int(SETTINGS.lease_s) + 1):
        lead.heard(m.Heartbeat(1, of_candidate(7)), 102.0 + second, other)
    assert not lead.candidates
    lead.heard(m.Heartbeat(1, of_candidate(7)), 104.0 + SETTINGS.lease_s, other)
    assert lead.candidates == (7,)


def beats(lead: Lead, speakers: list[Speaker]) -> None:
    """Each of them promises, and names the answer to its last heartbeat."""
    for at in (105, 106):
        for number, speaker in enumerate(speakers):
            beat = 100 * number + at
            promise = Promise(beat - 1, *speaker.heir)
            lead.heard(m.Heartbeat(beat, promise), float(at), speaker)
