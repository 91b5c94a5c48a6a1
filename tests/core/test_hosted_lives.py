"""R5: which lives of its jobs a coordinator hosts, and for how long, whatever agents do."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.hosted_lives import EPOCH, FAILED, LEASE_S, HostedLife, LivesHost
from tests.harness.properties import examples

from rallypoint.core import job_lives as j
from rallypoint.core.model import DeadPlace, Stamp

JOBS = ("one", "two", "three")


def test_a_job_is_forgotten_so_long_after_its_last_agent_has_left_and_not_before() -> None:
    host = LivesHost()
    host.attach("one", "a")
    host.leave("one", "a")
    host.tick(j.VERDICT_RETENTION_S - 1)
    host.attach("one", "b")
    host.tick(j.VERDICT_RETENTION_S + 1)
    assert list(host.present) == ["one"]
    host.leave("one", "b")
    host.tick(j.VERDICT_RETENTION_S - 1)
    assert list(host.present) == ["one"]
    host.tick(1)
    assert host.present == {}
    assert host.lives.waits == {}


def test_a_job_that_others_know_the_end_of_is_forgotten_at_once() -> None:
    lives = j.JobLives(EPOCH)
    lives.used("one", 0, is_wanted=False)
    assert lives.waits == {j.Wait("one"): 0.0}


def test_the_only_job_of_a_coordinator_is_not_forgotten() -> None:
    lives = j.JobLives(EPOCH, is_alone=True)
    lives.used("one", 0)
    assert lives.waits == {}


def test_a_full_coordinator_drops_the_job_that_was_left_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(j, "JOBS_MAX", 3)
    host = LivesHost()
    for job in JOBS:
        host.attach(job, "a")
    assert host.attach("four", "a") == j.NoRoom(
        "this coordinator hosts 3 jobs already: start another one for 'four'"
    )
    host.leave("two", "a")
    host.leave("one", "a")
    assert host.attach("one", "b") == j.TakePart(host.present["one"].number)
    host.leave("three", "a")
    assert host.attach("four", "a") is not None
    assert list(host.present) == ["one", "three", "four"]
    assert host.lives.waits.keys() == {j.Wait("three")}


def test_an_agent_is_to_come_again_until_the_end_of_its_life_is_recorded() -> None:
    host = LivesHost()
    host.attach("one", "a")
    host.end("one", is_recorded=False)
    host.leave("one", "a")
    host.attach("one", "b", is_recorded=False)
    assert host.attach("one", "a") == j.ComeAgain()
    assert host.attach("one", "c") == j.TakePart(host.present["one"].number)
    host.present["one"].is_recorded = True
    assert isinstance(host.attach("one", "a"), j.HearVerdict)


def test_a_verdict_that_was_recorded_is_heard_at_once() -> None:
    host = LivesHost()
    host.attach("one", "a")
    host.end("one")
    host.leave("one", "a")
    host.attach("one", "b", is_recorded=False)
    assert isinstance(host.attach("one", "a"), j.HearVerdict)


def test_a_life_is_held_for_its_agents_and_closed_without_any() -> None:
    lives, over = j.JobLives(EPOCH), j.Life(5, FAILED)
    for agents in (0, 2):
        hosted = j.Hosted(over, agents, True, 0)
        assert lives.forgotten("one", hosted, 0.0) == [j.End("one", agents > 0)]
    full = j.Hosted(over, 2, True, j.ENDED_MAX)
    assert lives.forgotten("one", full, 0.0) == [j.End("one", True), j.DropOldest("one")]
    assert lives.forgotten("one", j.Hosted(), 0.0) == []


def test_L7_a_first_round_waits_for_the_agents_and_for_the_lease_of_the_life_before() -> None:
    for leaves_first in (True, False):
        host = LivesHost()
        host.take_over("one", 2)
        host.attach("one", "a")
        host.end("one")
        host.attach("one", "b")
        assert host.present["one"].waits_for == 2
        for leaves in (leaves_first, not leaves_first):
            assert host.present["one"].waits_for
            if leaves:
                host.leave("one", "a")
            else:
                host.tick(LEASE_S)
        assert not host.present["one"].waits_for


def test_a_job_that_another_coordinator_leads_is_waited_for_no_more() -> None:
    host = LivesHost()
    host.take_over("one", 2)
    assert host.lives.waits.keys() == {j.Wait("one"), j.Wait("one", True)}
    host.deposed("one")
    assert host.lives.waits == {}
    host.take_over("one", 0)
    assert host.lives.waits.keys() == {j.Wait("one")}, "all nodes have heard"


def test_deaths_that_were_told_early_are_heard_once_by_the_job_that_they_are_of() -> None:
    lives = j.JobLives(EPOCH)
    places = [DeadPlace(Stamp(1, 0), rank) for rank in range(j.EARLY_DEATHS_MAX + 1)]
    lives.died_early("two", places[0])
    for place in places[:2]:
        lives.died_early("one", place)
    assert lives.taken_over("one", 0, 0.0) == [j.HearDeaths("one", tuple(places[:2]))]
    assert lives.taken_over("one", 0, 0.0) == []
    for place in places:
        lives.died_early("one", place)
    assert lives.taken_over("one", 0, 0.0) == [j.HearDeaths("one", tuple(places[1:]))]
    assert lives.taken_over("two", 0, 0.0) == [], "the oldest ones are forgotten"


def test_a_job_without_agents_begins_anew_for_other_settings_alone() -> None:
    for changed, begins in (("", False), ("other", True)):
        host = LivesHost()
        host.attach("one", "a")
        assert isinstance(host.attach("one", "b", "other"), j.TakePart), "it is refused there"
        host.leave("one", "a")
        host.leave("one", "b")
        placed = host.attach("one", "c", changed)
        assert isinstance(placed, j.BeginLife) == begins
    host = LivesHost(is_alone=True)
    host.attach("one", "a")
    host.leave("one", "a")
    assert isinstance(host.attach("one", "b", "other"), j.TakePart), "it is begun once"


AGENTS = st.sampled_from("abcde")
DEEDS = st.one_of(
    st.tuples(st.sampled_from(["attach", "attach", "leave"]), st.sampled_from(JOBS), AGENTS),
    st.tuples(st.just("attach"), st.sampled_from(JOBS), AGENTS),
    st.tuples(
        st.sampled_from(["end", "end early", "record", "attach early", "attach other"]),
        st.sampled_from(JOBS),
        AGENTS,
    ),
    st.tuples(
        st.sampled_from(["take over", "deposed", "tick", "long tick"]), st.just("one"), AGENTS
    ),
)
MOST = 4


class Rules(LivesHost):
    """Keeps what must be so of all lives."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, int] = {}
        self.left_at: dict[str, float] = {}
        self.ends: dict[tuple[str, int], bool] = {}
        """Lives that are over after a verdict, and whether that is recorded."""

    def do(self, effects: list[j.LivesEffect]) -> j.LivesEffect | None:
        for effect in effects:
            if isinstance(effect, j.BeginLife):
                began = [job for job in JOBS if job == self.coming]
                assert effect.incarnation > self.newest.get(began[0], 0)
                self.newest[began[0]] = effect.incarnation
            if isinstance(effect, j.End):
                life = self.present[effect.run_id]
                if life.verdict is not None:
                    self.ends[effect.run_id, life.number] = life.is_recorded
        return super().do(effects)

    coming = ""

    def come(self, job: str, agent: str, settings: str, *, is_recorded: bool) -> None:
        self.coming, last = job, self.known.get((job, agent))
        placed = self.attach(job, agent, settings, is_recorded=is_recorded)
        if (present := self.present.get(job)) is not None and present.is_recorded:
            for key in [each for each in self.ends if each[0] == job]:
                self.ends[key] = True
        if last is None or placed is None or isinstance(placed, j.NoRoom):
            return
        key = job, last.incarnation
        if isinstance(placed, j.ComeAgain):
            assert not self.ends[key], "its verdict is recorded"
        elif key in self.ends:
            assert placed == j.HearVerdict(last.incarnation, FAILED)
            assert self.ends[key] or (present is None), "the verdict may still become another"

    def forget(self, job: str) -> None:
        if self.now < self.left_at[job] + j.VERDICT_RETENTION_S:
            lives = len(self.present) + sum(map(len, self.held.values()))
            assert lives >= MOST, "it is forgotten too early"
        super().forget(job)

    def check(self) -> None:
        for job in JOBS:
            held: list[HostedLife] = self.held.get(job, [])
            assert len(held) <= j.ENDED_MAX
            assert all(life.agents for life in held)
            life = self.present.get(job)
            waits = j.Wait(job, True) in self.waits
            if life is not None and not held and not waits:
                assert not life.waits_for, "nobody is left to wait for"
            is_left = life is not None and not life.agents
            assert (j.Wait(job) in self.waits) == is_left, (
                "exactly jobs without agents are forgotten"
            )
            if is_left:
                self.left_at.setdefault(job, self.now)
            else:
                self.left_at.pop(job, None)


@settings(max_examples=examples(900), deadline=None, database=None, print_blob=True)
@given(st.lists(DEEDS, max_size=60))
def test_every_agent_hears_the_end_of_its_own_life_and_no_life_is_hosted_for_nobody(
    deeds: list[tuple[str, str, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(j, "JOBS_MAX", MOST)
        host = Rules()
        for deed, job, agent in deeds:
            present = host.present.get(job)
            match deed:
                case "attach" | "attach early" | "attach other":
                    settings_ = "other" if deed == "attach other" else ""
                    host.come(job, agent, settings_, is_recorded=deed != "attach early")
                case "leave":
                    host.leave(job, agent)
                case "end" | "end early" if present is not None and present.verdict is None:
                    host.end(job, is_recorded=deed == "end")
                case "record" if present is not None:
                    present.is_recorded = True
                case "take over" if present is None and not host.held.get(job):
                    host.take_over(job, 2)
                    host.newest[job] = host.present[job].number
                case "deposed":
                    host.deposed(job)
                case "tick":
                    host.tick(LEASE_S / 2)
                case "long tick":
                    host.tick(j.VERDICT_RETENTION_S / 2)
            host.check()
        for job in JOBS:
            for agent in "abcde":
                host.leave(job, agent)
            host.check()
        host.tick(j.VERDICT_RETENTION_S)
        assert (host.present, host.lives.waits) == ({}, {}), "nothing is left for ever"
        assert not any(host.held.values())
