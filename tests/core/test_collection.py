"""V6: what is collected from nodes for a person, whatever is lost meanwhile and in any order."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.harness.job_machine import A, B, running
from tests.harness.properties import examples

from rallypoint.core.host_effects import SendTo
from rallypoint.core.job_state import renumber
from rallypoint.core.messages import Collect, Collected, CollectMore
from rallypoint.core.watch import collection as c
from rallypoint.core.watch.collection_messages import (
    ALL_LINES,
    ANSWER_S,
    PIECES_IN_FLIGHT,
    SINCE,
    Gathered,
    HowFar,
    WorkerAnswer,
)
from rallypoint.core.watch.questions import Ask, RankRange, ReadTo, Subject

STACKS, LOGS = Ask(Subject.STACKS), Ask(Subject.LOGS, follow=True, newest=5)
NAMES = ("a", "b", "c", "d")


class Place:
    """Nodes with one worker each, which do what a test has them do, and one person."""

    def __init__(self, question: Ask = STACKS, nodes: int = 4, older: str = "") -> None:
        self.now, self.round, self.older = 100.0, 0, older
        self.connections: dict[str, int] = {}
        self.nodes = {name: rank for rank, name in enumerate(NAMES[:nodes])}
        self.names: dict[int, str] = {}
        self.looks: deque[str | None] = deque()
        self.owing: set[int] = set()
        """The connections of nodes that were told to send a piece."""
        self.wanted: set[int] = set()
        """Those of nodes that were asked, and have neither told all nor been told to stop."""
        self.complete: set[str] = set()
        self.seen: set[str] = set()
        self.reasons: dict[str, str] = {}
        """Why a node can't have told all, as this place knows."""
        self.texts = 0
        self.allowed: set[str] = set()
        self.passed: list[str] = []
        self.missing: dict[str, str] = {}
        self.untaken = 0
        self.has_ended = False
        self.end: c.CollectionEffect | None = None
        for name in self.nodes:
            self.connect(name)
        self.state = c.Collection(1, question, 0, self.now, HowFar())
        self.step(c.Asked())

    def connect(self, name: str) -> None:
        self.connections[name] = len(self.names) + 1
        self.names[self.connections[name]] = name

    def step(self, event: c.CollectionEvent) -> None:
        for effect in c.step(self.state, event, self.now):
            assert self.end is None, "nothing follows the end"
            match effect:
                case c.LookAround():
                    assert not self.looks, "one look at a time"
                    self.looks.extend([*self.nodes, None])
                case SendTo(connection, Collect()):
                    assert connection not in self.wanted
                    self.wanted.add(connection)
                case SendTo(connection, CollectMore(_, True)):
                    assert connection in self.wanted
                    assert connection not in self.owing, "one piece at a time"
                    self.owing.add(connection)
                    assert len(self.owing) + self.untaken <= PIECES_IN_FLIGHT
                case SendTo(connection, CollectMore()):
                    assert connection in self.wanted, "told once that nothing more is wanted"
                    self.wanted.discard(connection)
                    self.owing.discard(connection)
                    self.reasons[self.names[connection]] = "no answer within 5 s"
                case c.Pass(part):
                    self.untaken += 1
                    self.take(part)
                case c.Finish(part):
                    self.take(part)
                    self.end = effect
                case c.CutOff():
                    self.end = effect

    def take(self, part: Gathered) -> None:
        assert all(one.rank == self.nodes.get(part.node, one.rank) for one in part.told)
        self.passed += [one.text for one in part.told]
        self.missing |= part.missing

    def see(self) -> None:
        """Look at one node."""
        if not self.looks:
            return
        name = self.looks.popleft()
        if name is None:
            self.step(c.AllSeen())
        elif name in self.nodes:
            workers = c.NodeWorkers(name, self.round, self.nodes[name], 1)
            connection = self.connections.get(name)
            version = SINCE - (name == self.older)
            if self.end is None:
                self.seen.add(name)
                if connection is None:
                    self.reasons[name] = "it is not connected"
                elif name == self.older:
                    self.reasons[name] = "it runs an older version of Rallypoint"
            self.step(c.NodeSeen(workers, connection, version))

    def see_all(self) -> None:
        while self.looks:
            self.see()

    def says(self, name: str, *texts: str, is_last: bool = False) -> None:
        if (connection := self.connections.get(name)) is None:
            return
        is_all = is_last and connection in self.wanted
        self.owing.discard(connection)
        if is_all:
            self.wanted.discard(connection)
            self.complete.add(name)
        told = tuple(WorkerAnswer(0, text, 2, next=self.texts) for text in texts)
        rank = self.nodes.get(name)
        workers = None if rank is None else c.NodeWorkers(name, self.round, rank, 1)
        piece = Collected(1, self.round, told, is_last)
        self.step(c.Piece(connection, piece, workers, 1))

    def tells(self, name: str, *, is_last: bool = False) -> None:
        self.texts += 1
        if self.connections.get(name) in self.owing:
            self.allowed.add(f"{self.texts}")
        self.says(name, f"{self.texts}", is_last=is_last)

    def loses(self, name: str) -> None:
        if (connection := self.connections.pop(name, None)) is not None:
            if connection in self.wanted and not self.has_ended:
                self.reasons[name] = "its connection broke"
            self.wanted.discard(connection)
            self.owing.discard(connection)
            self.step(c.Lost(connection))

    def takes(self) -> None:
        self.untaken = max(self.untaken - 1, 0)
        self.step(c.Taken())

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.step(c.TimePassed())

    def ends(self) -> None:
        self.has_ended = True
        self.step(c.JobEnded())


def test_a_node_sends_one_piece_for_each_time_that_it_is_told_to() -> None:
    place = Place(nodes=1)
    place.see_all()
    place.tells("a")
    assert place.passed == [], "it was not told to"
    place.says("a")
    place.tells("a")
    place.tells("a")
    assert place.passed == ["2"]
    place.says("a", is_last=True)
    assert place.end == c.Finish(Gathered())


def test_who_follows_has_each_line_once_though_a_connection_breaks() -> None:
    place = Place(LOGS, nodes=1)
    place.see_all()
    place.says("a")
    place.tells("a")
    place.loses("a")
    place.connect("a")
    place.tick()
    place.see_all()
    assert place.state.read.all == (ReadTo(0, 2, 0, 1),)
    assert len(place.wanted) == 1, "it is asked again"
    assert place.missing == {}


def test_a_node_that_stays_away_is_asked_for_a_follower_when_it_is_back() -> None:
    place = Place(LOGS, nodes=2)
    place.loses("b")
    place.see_all()
    place.tick()
    place.see_all()
    assert len(place.wanted) == 1
    place.connect("b")
    place.tick()
    place.see_all()
    assert place.connections["b"] in place.wanted


@pytest.mark.parametrize("follows", [False, True])
def test_a_node_that_has_something_does_not_owe_it_while_the_person_is_slow(follows: bool) -> None:
    place = Place(LOGS if follows else STACKS, nodes=2)
    place.see_all()
    for _ in range(PIECES_IN_FLIGHT):
        place.says("a")
        place.tells("a")
    for name in "ab":
        place.says(name)
    place.tick(ANSWER_S + 1)
    place.see_all()
    assert len(place.wanted) == 2
    place.tick(c.STALLED_S)
    assert place.end == (None if follows else c.CutOff()), "a follower may be a pager"


def test_a_person_who_takes_a_value_has_another_minute() -> None:
    place = Place(nodes=1)
    place.see_all()
    for _ in range(PIECES_IN_FLIGHT):
        place.says("a")
        place.tells("a")
    place.says("a")
    for _ in range(3):
        place.tick(c.STALLED_S - 1)
        assert place.end is None
        place.takes()
        place.tick(1.0)
        assert place.missing == {}, "it was told to send a piece only now"
        place.tells("a")
        place.says("a")
    place.tick(c.STALLED_S + 1)
    assert place.end == c.CutOff()


def test_a_person_for_whom_no_node_waits_is_not_cut_off() -> None:
    place = Place(nodes=1)
    place.see_all()
    for _ in range(PIECES_IN_FLIGHT - 1):
        place.says("a")
        place.tells("a")
        place.tick(ANSWER_S - 0.5)
    assert place.end is None


def test_a_node_has_five_seconds_for_each_piece_from_when_it_told_the_last_one() -> None:
    for follows in (False, True):
        place = Place(LOGS if follows else STACKS, nodes=1)
        place.see_all()
        for _ in range(3):
            place.says("a")
            place.tick(ANSWER_S - 1)
            place.tells("a")
            place.tick(ANSWER_S - 1)
            place.see_all()
            assert place.missing == {}
        place.says("a")
        place.tick(ANSWER_S + 1)
        place.see_all()
        assert place.missing == {"a": "no answer within 5 s"}, "it was told to send a piece"


def test_a_person_does_not_wait_for_room_for_a_node_that_is_lost() -> None:
    place = Place(nodes=2)
    place.see_all()
    for _ in range(PIECES_IN_FLIGHT):
        place.says("a")
        place.tells("a")
    place.says("b")
    place.loses("b")
    place.says("a", is_last=True)
    assert isinstance(place.end, c.Finish), "nobody is left who waits"
    place = Place(LOGS, nodes=2)
    place.see_all()
    for _ in range(PIECES_IN_FLIGHT):
        place.says("a")
        place.tells("a")
    place.says("b")
    place.loses("b")
    place.takes()
    place.says("a")
    assert place.owing == {place.connections["a"]}


def test_a_node_that_leaves_after_the_end_of_the_job_is_not_missing() -> None:
    place = Place(nodes=2)
    place.see_all()
    place.loses("a")
    place.ends()
    place.loses("b")
    assert place.end == c.Finish(Gathered(missing={"a": "its connection broke"}))


def test_a_node_that_is_lost_while_it_sends_leaves_room_for_others() -> None:
    place = Place(LOGS, nodes=1)
    for _ in range(PIECES_IN_FLIGHT + 1):
        place.see_all()
        place.says("a")
        assert place.owing
        place.loses("a")
        place.connect("a")
        place.tick()


def test_a_node_that_tells_what_it_was_not_told_to_still_waits_for_its_turn() -> None:
    place = Place(nodes=1)
    place.see_all()
    place.takes()  # Nothing was told that could be taken: that makes no room.
    for _ in range(PIECES_IN_FLIGHT):
        place.says("a")
        place.tells("a")
    place.says("a")
    place.tells("a")
    place.takes()
    assert place.owing


def test_a_quiet_node_of_a_follower_is_withdrawn_only_if_it_never_answered() -> None:
    place = Place(LOGS, nodes=2)
    place.see_all()
    place.says("a")
    place.tells("a")
    place.tick(ANSWER_S + 1)
    place.see_all()
    assert place.missing == {"b": "no answer within 5 s"}
    assert place.wanted == {place.connections["a"]}


def test_a_node_of_the_next_round_is_asked_for_all_lines_and_may_tell_of_the_last_one() -> None:
    state = c.begin(1, running().job, LOGS, 0.0)
    c.step(state, c.Asked(), 0.0)
    c.step(state, c.NodeSeen(c.NodeWorkers("a", 0, 4, 2), 1), 0.0)
    later = c.NodeSeen(c.NodeWorkers("b", 1, 0, 1), 2)
    (sent,) = c.step(state, later, 1.0)
    assert sent == SendTo(2, Collect(1, Subject.LOGS, (), ALL_LINES, follow=True))
    told = (WorkerAnswer(0, "x"), WorkerAnswer(1, "y"), WorkerAnswer(2, "of no worker"))
    now = c.NodeWorkers("a", 1, 7, 1)
    ranks = []
    for round_ in (1, 0, 2):
        c.step(state, c.Piece(1, Collected(1), now, 1), 1.0)
        for effect in c.step(state, c.Piece(1, Collected(1, round_, told), now, 1), 1.0):
            assert isinstance(effect, c.Pass)
            ranks.append([one.rank for one in effect.part.told])
    assert ranks == [[7], [4]]


def test_lines_are_missing_that_may_be_lost_only_of_a_node_that_this_coordinator_has_asked() -> (
    None
):
    for is_known in (False, True):
        state = c.Collection(1, LOGS, 1, 0.0, HowFar([ReadTo(0, 2, 0, 9)]))
        c.step(state, c.Asked(), 0.0)
        if is_known:
            c.step(state, c.NodeSeen(c.NodeWorkers("a", 0, 0, 1), 1), 0.0)
            c.step(state, c.Lost(1), 0.0)
        c.step(state, c.NodeSeen(c.NodeWorkers("a", 1, 0, 1), 2), 0.0)
        why = "round 0 has ended since its connection broke: the last lines of it may be missing"
        told = c.Pass(Gathered(round=1, missing={"a": why}))
        assert c.step(state, c.AllSeen(), 0.0) == ([told] if is_known else [])


def test_only_nodes_and_ranks_that_are_meant_are_asked() -> None:
    question = replace(STACKS, ranks=(RankRange(2, 2),), nodes=("c",))
    state = c.Collection(1, question, 0, 0.0, HowFar())
    c.step(state, c.Asked(), 0.0)
    sent = []
    for rank, name in enumerate(NAMES):
        node = c.NodeWorkers(name, 0, 2 * rank, 2)
        sent += c.step(state, c.NodeSeen(node, rank), 0.0)
    ranks = question.ranks
    assert sent == [
        SendTo(1, Collect(1, Subject.STACKS, ranks)),
        SendTo(2, Collect(1, Subject.STACKS)),
    ]


def test_what_was_read_counts_in_the_same_life_of_the_job_alone() -> None:
    job, read = running().job, (ReadTo(0, 2, 0, 9),)
    for life, counts in ((job.incarnation, True), (job.incarnation + 1, False)):
        question = replace(LOGS, read=read, incarnation=life)
        assert c.begin(1, job, question, 0.0).read.all == (read if counts else ())
    renumber(job, 99)
    former = replace(LOGS, read=read, incarnation=job.origin)
    assert c.begin(1, job, former, 0.0).read.all == read, "the same life under another number"


def test_the_workers_of_a_node_are_those_of_its_place_in_the_world() -> None:
    job = running().job
    assert [c.workers_of(job, ref.node_id) for ref in (A, B)] == [
        c.NodeWorkers("a", 0, 0, 2),
        c.NodeWorkers("b", 0, 2, 2),
    ]
    assert c.workers_of(job, "z") is None
    job.round.world.reverse()
    assert c.workers_of(job, "a") is None, "another node has that place"


def refused(question: Ask, others: int = 0) -> str:
    return c.refusal(running().job, question, others, has_formed=True, is_known=False)


def test_a_question_that_has_no_answer_is_refused() -> None:
    assert refused(STACKS) == refused(STACKS, c.ASKERS_MAX - 1) == ""
    assert refused(STACKS, c.ASKERS_MAX) == "64 others ask for the workers of this job just now"
    assert refused(replace(STACKS, nodes=("z",))).startswith("there is no node 'z' in round 0")
    last = replace(STACKS, ranks=(RankRange(3, 3),))
    assert refused(last) == ""
    beyond = replace(STACKS, ranks=(RankRange(3, 4),))
    assert refused(beyond) == "there is no rank 3-4 in round 0; the last is 3"
    backward = replace(STACKS, ranks=(RankRange(2, 1),))
    assert refused(backward) == "there is no rank 2-1 in round 0; the last is 3"


ONE = st.sampled_from(NAMES)
DEEDS = st.one_of(
    st.tuples(st.sampled_from(["has", "tells", "ends", "ends telling"]), ONE),
    st.tuples(st.sampled_from(["has", "tells"]), st.just("a")),
    st.tuples(st.sampled_from(["loses", "comes back", "comes again"]), ONE),
    st.tuples(st.sampled_from(["look", "look", "look", "take", "tick", "long tick"]), st.just("")),
    st.tuples(st.sampled_from(["next round", "job ends", "hang up"]), st.just("")),
)


def do(place: Place, deed: str, name: str) -> None:
    match deed:
        case "has":
            place.says(name)
        case "tells":
            place.tells(name)
        case "ends":
            place.says(name, is_last=True)
        case "ends telling":
            place.tells(name, is_last=True)
        case "loses":
            place.loses(name)
        case "comes back" if name not in place.connections:
            place.connect(name)
        case "comes again" if name in place.connections:
            place.loses(name)
            place.connect(name)
        case "look":
            place.see()
        case "take":
            place.takes()
        case "tick":
            place.tick()
        case "long tick":
            place.tick(3.0)
        case "next round" if place.state.question.follow:
            place.round += 1
        case "job ends" if not place.has_ended:
            place.ends()
        case "hang up" if place.end is None:
            place.step(c.HungUp())
            assert place.end == c.CutOff()


def end_of(place: Place) -> None:
    """Have the question end, and say what must be so."""
    follows, older = place.state.question.follow, place.older
    if follows and not place.has_ended and place.end is None:
        place.tick(0.5)
        place.see_all()
        assert place.end is None, "who follows is told of the end by the job's end"
        place.ends()
    for _ in range(12):
        while place.untaken:
            place.takes()
        place.see_all()
        place.tick(3.0)
    assert place.end is not None, "every question ends"
    assert not place.wanted, "each node was told that nothing more is wanted, or has told all"
    assert Counter(place.passed) <= Counter(place.allowed)
    assert place.passed == sorted(place.passed, key=int)
    if isinstance(place.end, c.Finish) and not follows:
        absent = place.seen - place.complete
        if not place.has_ended:
            assert place.missing.keys() == absent
        for name, why in place.missing.items():
            assert why == place.reasons[name]
    if follows and "older" in place.reasons.get(older, "") and isinstance(place.end, c.Finish):
        assert place.missing[older] == place.reasons[older]


@settings(max_examples=examples(1200), deadline=None, database=None, print_blob=True)
@given(st.booleans(), st.sampled_from(["", "b"]), st.lists(DEEDS, max_size=80))
def test_every_question_ends_once_and_whoever_is_missing_is_named(
    follows: bool, older: str, deeds: list[tuple[str, str]]
) -> None:
    """A loss may come at any message. No piece is passed on that was not asked for, none twice, and
    never are more under way than there may be."""
    place = Place(LOGS if follows else STACKS, older=older)
    for deed, name in deeds:
        do(place, deed, name)
    end_of(place)


EXCHANGE = (
    *(("look", ""), ("look", ""), ("look", ""), ("has", "a"), ("has", "b"), ("tells", "a")),
    *(("take", ""), ("has", "a"), ("tells", "b"), ("ends telling", "a"), ("take", "")),
    *(("has", "b"), ("tick", ""), ("tells", "b"), ("take", ""), ("ends", "b")),
)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize(
    "loss", [("loses", "a"), ("comes again", "b"), ("job ends", ""), ("hang up", "")]
)
def test_a_loss_at_every_message_of_an_exchange_leaves_nothing_open(
    loss: tuple[str, str], follows: bool
) -> None:
    for at in range(len(EXCHANGE) + 1):
        place = Place(LOGS if follows else STACKS, nodes=2)
        for deed, name in (*EXCHANGE[:at], loss, *EXCHANGE[at:]):
            do(place, deed, name)
        end_of(place)
