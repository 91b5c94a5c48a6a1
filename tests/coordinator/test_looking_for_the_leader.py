"""A node that may claim its job, and what it has promised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

import pytest
from tests.harness.limits import patience
from tests.harness.narrowed import known

from rallypoint.clocks import boot_time
from rallypoint.coordinator.connection import ClientConnection
from rallypoint.coordinator.hosting import Hosting
from rallypoint.coordinator.leading.leader_process import LocalLeader, Runtime
from rallypoint.coordinator.leading.leader_search import LeaderSearch, Listening, OwnLeadership
from rallypoint.coordinator.server import Coordinator
from rallypoint.core.model import Epoch, SharedSettings, Stamp
from rallypoint.core.takeover.candidacy import Present
from rallypoint.core.takeover.clock_rates import with_margin
from rallypoint.core.takeover.consent import Promises
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leader_search import Search
from rallypoint.core.takeover.memory import Memory
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import Deference
from rallypoint.errors import RecordError, RendezvousConnectionError
from rallypoint.register.contract import MemoryRendezvousBackend, Token
from rallypoint.register.record import decode, encode
from rallypoint.threads import CallThread
from rallypoint.wire.address import Address

ROUND = Stamp(1, 3)
JOB = JobRecord(SharedSettings("job", 1, 2), 1, 3, True, True, 2, leader_rank=0)
RECORD = LeadRecord(1, Epoch(1, 1), Leader(("host:1",), Process("boot", 1, 1)), 0, JOB)


class ClaimsFail(MemoryRendezvousBackend):
    """What is stored by a claim is not known. Reads wait for `may_read`."""

    def __init__(self, record: LeadRecord) -> None:
        super().__init__()
        self.may_read, self.is_read = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.is_away, self.refused = False, 0
        self.is_lost = False
        """Nothing is found."""
        self.put(record)

    def put(self, record: LeadRecord) -> None:
        """It is the next version."""
        self.put_bytes(encode(record))

    def put_bytes(self, data: bytes) -> None:
        """These are the next version."""
        found = super().get_state()
        super().set_state(data, None if found is None else found[1])

    def get_state(self) -> tuple[bytes, Token] | None:
        self.calls.append("read")
        self.is_read.set()
        assert self.may_read.wait(patience(60))
        if self.is_away:
            self.refused += 1
            raise RendezvousConnectionError("away")
        return None if self.is_lost else super().get_state()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self.calls.append("claim")
        raise RendezvousConnectionError("no answer")


class ClaimsWait(ClaimsFail):
    """Claims wait for `may_claim`, and then are stored."""

    def __init__(self, record: LeadRecord) -> None:
        super().__init__(record)
        self.is_claimed, self.may_claim = threading.Event(), threading.Event()
        self.may_read.set()

    def set_state(
        self, state: bytes, token: Token | None = None
    ) -> tuple[bytes, Token, bool] | None:
        self.is_claimed.set()
        assert self.may_claim.wait(patience(60))
        return MemoryRendezvousBackend.set_state(self, state, token)


class Heir:
    """A node that has no leader."""

    is_attached = is_fresh = False

    def __init__(self) -> None:
        self.dials = 0
        self.notices: list[str] = []

    def claimant(self) -> Claimant:
        return Claimant(ROUND, 1, is_fresh=self.is_fresh)

    async def dial(self, addresses: Sequence[Address]) -> ClientConnection:
        self.dials += 1
        raise RendezvousConnectionError("nobody answers")

    def listen(self) -> Listening:
        return Listening([], ())

    def host(self, listening: Listening) -> Coordinator:
        return Coordinator([], Hosting(lambda run_id, record: None), None)

    def leads_no_more(self) -> None: ...

    def notice(self, text: str) -> None:
        self.notices.append(text)


class Case:
    """The node looks for a leader, and may claim the job."""

    def __init__(
        self,
        record: LeadRecord,
        *,
        is_gone: bool = False,
        clock: Callable[[], float] = boot_time,
        register: ClaimsFail | None = None,
    ) -> None:
        """`record`: what the register holds. `is_gone`: the process of its leader is known to be
        gone. `clock`: as that of `Runtime`. `register`: one that holds the record already."""
        self.register, self.node = register or ClaimsFail(record), Heir()
        own = OwnLeadership(15.0)
        own.promises.assigned(ROUND, 1)
        self.promises = own.promises
        runtime = Runtime(clock, lambda process, own: is_gone)
        local = LocalLeader(Process("boot2", 1, 1), CallThread("register"), runtime)
        self.search = LeaderSearch(self.register, local, own, self.node, "job")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.register.may_read.set()
        await self.search.close(is_heard=False)

    async def look(self) -> None:
        """For a leader."""
        with suppress(RendezvousConnectionError):
            await self.search.dial()


async def test_L2_a_node_that_promises_while_it_reads_does_not_claim_by_what_it_reads() -> None:
    async with Case(RECORD, is_gone=True) as case:
        await asyncio.to_thread(case.register.is_read.wait)
        case.promises.answered(1, 100.0)
        case.promises.next(0.0, RECORD.epoch.as_int())
        case.register.may_read.set()
        while "claim" not in case.register.calls:
            await case.look()
        assert case.register.calls[:2] == ["read", "read"]


async def test_L1_a_node_that_ends_while_it_claims_leaves_the_job_to_others_at_once() -> None:
    register = ClaimsWait(RECORD)
    async with Case(RECORD, is_gone=True, register=register) as case:
        await asyncio.to_thread(register.is_claimed.wait)
        case.search.stop()
        register.may_claim.set()
    found = known(register.get_state())
    assert decode(found[0]).is_vacant


async def test_L5_a_node_dials_the_leader_that_it_knew_last_while_the_register_is_away() -> None:
    """That one may lead by case.promises."""
    async with Case(RECORD) as case:
        case.register.may_read.set()
        await case.look()
        case.register.is_away = True
        while not case.register.refused:
            await case.look()
        dials = case.node.dials
        await case.look()
        assert case.node.dials == dials + 1


async def test_L1_a_node_that_has_seen_the_record_of_its_job_never_believes_there_is_none() -> None:
    """As in a directory that is not mounted for a while."""
    async with Case(RECORD) as case:
        case.register.may_read.set()
        await case.look()
        case.register.is_lost = True
        before = len(case.register.calls)
        while len(case.register.calls) < before + 3:
            await case.look()
        assert "claim" not in case.register.calls


def test_L2_a_node_claims_by_what_it_has_promised_and_lets_others_do_first() -> None:
    promises, deference = Promises(15.0), Deference()
    promises.assigned(ROUND, 1)
    promises.answered(1, 100.0)
    promises.next(0.0, RECORD.epoch.as_int())
    deference.begin(JOB, 200.0)
    search = Search(RECORD.leader, 1, Memory(), promises, deference)
    search.looks(Present(Claimant(ROUND, 1, is_leaving=True)))
    assert search.claimant == Claimant(
        ROUND, 1, is_leaving=True, promised_until=100.0 + with_margin(7.5), defers_until=200.0
    )


@pytest.mark.parametrize("answers", [True, False])
async def test_L2_a_leader_that_answers_and_renews_no_record_is_remarked_on_and_a_silent_one_is_not(
    answers: bool,
) -> None:
    now = 100.0

    async with Case(RECORD, clock=lambda: now) as case:
        case.register.may_read.set()
        await case.look()
        case.promises.answered(1, now)
        case.node.is_attached = True
        for _ in range(8):
            now += 1.0
            if answers:
                case.promises.answered(1, now)
            await case.search._look_now()
        assert len(case.node.notices) == answers


@pytest.mark.parametrize("is_fresh", [False, True])
async def test_L1_a_node_of_the_job_names_a_record_that_is_none_once_and_a_new_one_ends_with_it(
    is_fresh: bool,
) -> None:
    """As its last line."""
    async with Case(RECORD) as case:
        case.node.is_fresh = is_fresh
        case.register.put_bytes(b"rubbish")
        case.register.may_read.set()
        for _ in range(2):
            with pytest.raises(RecordError, match="does not parse"):
                await case.search.dial()
        assert len(case.node.notices) == (not is_fresh)
        assert is_fresh or "the job's record does not parse" in case.node.notices[0]
        case.register.put(RECORD)
        await case.search._look_now()
        case.register.put_bytes(b"rubbish")
        await case.search._look_now()
        with pytest.raises(RecordError):
            await case.search.dial()
        assert len(case.node.notices) == (0 if is_fresh else 2)


async def test_L1_an_unexpected_error_of_the_register_is_one_of_each_attempt_to_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise ValueError("of its own")

    unheard: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unheard.append(context["exception"]))
    async with Case(RECORD) as case:
        monkeypatch.setattr(case.register, "get_state", fail)
        case.register.may_read.set()
        for _ in range(2):
            with pytest.raises(ValueError, match="of its own"):
                await case.search.dial()
    assert len(unheard) == 1


async def test_L1_a_node_without_a_leader_says_when_it_is_its_own_turn() -> None:
    async with Case(RECORD) as case:
        case.register.may_read.set()
        said: asyncio.Queue[str] = asyncio.Queue()
        connecting = asyncio.create_task(case.search.connect(60.0, said.put_nowait))
        what, _, when = (await said.get()).partition(": ")
        connecting.cancel()
        assert what == "waiting for a node that leads the job (nobody answers)"
        assert when == "if no other node leads it by then, this one does in about 12 s"
