"""When a leader gives up leading by itself."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core.liveness import Liveness
from rallypoint.core.model import Epoch, SharedSettings
from rallypoint.core.settings import HOLD_S
from rallypoint.core.takeover.heirs import Claimant
from rallypoint.core.takeover.leading import Lead, Watch
from rallypoint.core.takeover.record import JobRecord, Leader, LeadRecord, Process
from rallypoint.core.takeover.stepping_down import (
    CHECK_S,
    Deference,
    Silence,
    SteppingDown,
    silence_of,
)

SETTINGS = SharedSettings("job", 1, 8)
LEASE_S = SETTINGS.lease_s
JOB = JobRecord(SETTINGS, 1, 3, True, True, 4, leader_rank=0)
LEADER = Leader((), Process("boot", 1, 10), has_workers=True)
FOREVER = 10_000.0


def record(job: JobRecord | None = JOB, *, is_vacant: bool = False) -> LeadRecord:
    return LeadRecord(1, Epoch(3, 7), LEADER, 0, job, is_vacant)


class Node:
    """It leads from 0 on, with a register that answers until `sure_until`."""

    def __init__(self, job: JobRecord | None = JOB, sure_until: float = FOREVER) -> None:
        self.deference = Deference()
        self.lead = Lead(record(job), sure_until - HOLD_S)
        self.now = 0.0
        self.leads_again()

    def leads_again(self) -> None:
        self._stepping_down = SteppingDown(self.deference)
        self._began_at = self.now

    def leads_until(self, silence: Silence, *, silent_since: float = 0.0) -> float:
        """It steps down then; at most a minute later. The nodes are silent since that time."""

        def silence_for(seconds: float) -> Silence:
            return silence if self.now - silent_since >= seconds else Silence(0, silence.nodes)

        for _ in range(int(60 / CHECK_S)):
            self.why = self._stepping_down.why(self.lead, silence_for, self.now)
            if self.why:
                break
            self.now += CHECK_S
        return self.now


def test_L2_a_leader_that_is_unsure_for_a_lease_leads_no_more() -> None:
    node = Node(sure_until=20.0)
    assert node.leads_until(Silence(0, 4)) == 20 + LEASE_S
    assert "register" in node.why
    assert Node().leads_until(Silence(0, 4)) == 60.0


def test_L2_a_leader_whose_consent_ends_by_what_it_decides_is_unsure_from_then_on() -> None:
    node = Node()
    node.leads_until(Silence(0, 4))
    node.lead = Lead(record(), node.now - LEASE_S - HOLD_S)
    assert node.leads_until(Silence(0, 4)) == 60 - CHECK_S + LEASE_S


def test_L2_nodes_do_not_step_down_one_after_the_other_while_nobody_knows_what_runs() -> None:
    times = [
        Node(replace(JOB, stepped_down=before)).leads_until(Silence(4, 4)) for before in (0, 1, 2)
    ]
    assert times[0] == times[1] < 60.0 == times[2]


def test_L2_a_leader_that_is_unsure_does_not_count_who_is_silent() -> None:
    """Nobody has an answer: agents drop their connections because of that."""
    node = Node(sure_until=20.0)
    assert node.leads_until(Silence(4, 4), silent_since=18.0) == 20 + LEASE_S
    assert "register" in node.why


def test_L2_a_leader_that_most_nodes_do_not_reach_lets_another_one_lead() -> None:
    node = Node()
    assert node.leads_until(Silence(3, 4), silent_since=30.0) == 30 + LEASE_S / 3
    assert node.why == "it does not hear 3 of 4 nodes, and another may"


@pytest.mark.parametrize(
    "jobs",
    [(JOB, JOB), (JobRecord(SETTINGS, 1), JobRecord(SETTINGS, 2))],
    ids=["in a round", "before the first one"],
)
def test_L2_a_leader_to_which_no_other_node_comes_lets_another_one_lead_once(
    jobs: tuple[JobRecord, JobRecord],
) -> None:
    """Or the wait for others would begin anew for ever, and the job never time out."""
    node, alone = Node(jobs[0]), Silence(is_alone=True)
    stepped_down_at = node.leads_until(alone)
    assert LEASE_S <= stepped_down_at <= 2 * LEASE_S
    assert "no other node" in node.why
    node.lead = Lead(record(jobs[1]), FOREVER - HOLD_S)
    node.leads_again()
    node.leads_until(alone)
    assert not node.why


def of(cluster: Cluster) -> Silence:
    """Where everybody is heard."""
    return silence_of(cluster.job, None, lambda life, seconds: False, 5.0)


def test_L2_a_node_that_is_the_only_one_to_join_is_alone() -> None:
    cluster = Cluster(SharedSettings("job", 2, 2), has_register=True)
    assert of(cluster).is_alone
    (a,) = cluster.add("a")
    cluster.job.own_agent = a.ref.incarnation
    assert of(cluster).is_alone
    cluster.add("b")
    assert not of(cluster).is_alone


@pytest.mark.parametrize("silence", [Silence(1, 2), Silence(2, 4), Silence(0, 1), Silence()])
def test_L2_half_of_the_nodes_are_no_reason_to_step_down(silence: Silence) -> None:
    assert Node().leads_until(silence) == 60.0


def test_L2_a_new_leader_gives_the_nodes_time_to_find_it() -> None:
    assert Node().leads_until(Silence(3, 4), silent_since=-60.0) == LEASE_S / 2 + LEASE_S / 3


def test_L2_a_leader_that_did_not_run_has_heard_nobody_meanwhile() -> None:
    node = Node()
    node.leads_until(Silence(0, 4))
    assert node.now == 60.0
    node.now = 100.0
    assert node.leads_until(Silence(3, 4)) == 100 + LEASE_S / 3


def test_L2_who_may_send_nothing_for_long_is_not_silent_before_that() -> None:
    slow = replace(JOB, settings=replace(SETTINGS, heartbeat_s=7.0))
    assert Node(slow).leads_until(Silence(3, 4), silent_since=20.0) == 20 + 21
    short = replace(JOB, settings=replace(SETTINGS, lease_s=0.6, heartbeat_s=0.1))
    assert Node(short).leads_until(Silence(3, 4), silent_since=20.0) >= 20 + 3


def test_L2_a_node_to_which_the_job_comes_back_leads_on_until_the_next_round() -> None:
    """Most nodes are dead: another change of the leader would only delay the next round."""
    node = Node()
    node.leads_until(Silence(3, 4))
    node.leads_again()
    assert node.leads_until(Silence(3, 4)) == node._began_at + 60
    node.lead.confirmed(node.lead.next(replace(JOB, round=4)), FOREVER)
    assert node.leads_until(Silence(3, 4)) < node._began_at + 61


def test_L2_a_node_that_hears_the_others_while_no_world_runs_does_not_step_down_again() -> None:
    """Two nodes need a third one that is dead: each of them led in turn, each time with the whole
    join timeout before it, and the job never timed out."""
    node = Node(replace(JOB, is_active=False))
    node.leads_until(Silence(3, 4))
    node.leads_again()
    node.leads_until(Silence(1, 4))
    assert node.leads_until(Silence(3, 4), silent_since=node.now) == node._began_at + 120
    assert not node.why


def test_L2_a_node_to_which_the_job_comes_back_may_step_down_again_when_it_has_run_since() -> None:
    """As when the leader is cut off from the others twice in one round, hours apart."""
    node = Node()
    node.leads_until(Silence(3, 4))
    node.leads_again()
    assert node.leads_until(Silence(0, 4)) == node._began_at + 60
    assert node.leads_until(Silence(3, 4), silent_since=node.now) < node._began_at + 120
    assert "does not hear 3 of 4" in node.why


def test_L2_a_job_without_a_node_has_a_leader_all_the_same() -> None:
    assert Node(None, sure_until=1.0).leads_until(Silence()) == 60.0


@pytest.mark.parametrize("is_gone", [True, False])
def test_L2_a_node_that_has_stepped_down_lets_others_claim_first(is_gone: bool) -> None:
    """Its own process is `is_gone` for itself: it knows that it does not lead."""
    node = Node()
    stepped_down_at = node.leads_until(Silence(3, 4))
    claimant = Claimant(None, -1, defers_until=node.deference.until)
    vacant = record(is_vacant=not is_gone)
    wait_s = Watch().claims_in_s(vacant, stepped_down_at, is_gone=is_gone, claimant=claimant)
    assert wait_s >= LEASE_S / 2
    wait_s = Watch().claims_in_s(vacant, stepped_down_at, is_gone=is_gone, claimant=Claimant())
    assert wait_s < LEASE_S / 2
    claimant = Claimant(None, -1, defers_until=FOREVER)
    running = Watch().claims_in_s(record(), 0.0, is_gone=False, claimant=claimant)
    assert running >= FOREVER


# Whom a leader hears


class Job:
    """Three nodes run a round."""

    def __init__(self) -> None:
        self.cluster = Cluster(replace(SETTINGS, min_nodes=3, max_nodes=3), has_register=True)
        self.agents = [self.cluster.start(name) for name in "abc"]
        self.cluster.settle()
        assert all(agent.running for agent in self.agents)

    def silence(self, *silent: SimulatedAgent) -> Silence:
        job, lives = self.cluster.job, {agent.ref.incarnation for agent in silent}
        handover = self.cluster.sessions._handover
        assert handover is not None
        return silence_of(job, handover.recovery, lambda life, seconds: life in lives, 5.0)


def test_L2_the_nodes_of_the_newest_world_are_counted() -> None:
    job = Job()
    a, b, _ = job.agents
    assert job.silence() == Silence(0, 3)
    assert job.silence(a, b) == Silence(2, 3)
    spare = job.cluster.start("d")
    job.cluster.settle()
    assert job.silence(b, spare) == Silence(1, 3)


def test_L2_a_node_that_has_succeeded_may_be_silent() -> None:
    job = Job()
    a, b, _ = job.agents
    job.cluster.succeed(a)
    job.cluster.settle()
    assert job.silence(a, b) == Silence(1, 3)


def test_L2_a_node_that_is_gone_with_its_workers_may_be_silent() -> None:
    job = Job()
    a, b, _ = job.agents
    job.cluster.job.stopped.add(a.ref.incarnation)
    assert job.silence(a, b) == Silence(1, 3)


def test_L2_where_no_world_runs_nobody_is_waited_for() -> None:
    job = Job()
    a, b, c = job.agents
    job.cluster.give_up(a)
    assert not job.silence(a, b, c).is_too_much


def test_L2_a_leader_hears_agents_that_were_started_again() -> None:
    job = Job()
    job.cluster.take_over()
    for name in "abc":
        job.cluster.start(name)
    job.cluster.settle()
    assert not job.silence().is_too_much


def test_L2_a_node_that_has_not_come_to_a_new_leader_is_not_heard() -> None:
    job = Job()
    a, b, _ = job.agents
    job.cluster.take_over()
    assert job.silence() == Silence(3, 3)
    job.cluster.connect(a)
    job.cluster.connect(b)
    while moves := [move for move in job.cluster.moves() if move[0] == "up"]:
        job.cluster.deliver(moves[0])
    assert job.silence() == Silence(1, 3)
    assert job.silence(b) == Silence(2, 3)


def test_L2_a_node_whose_guard_has_reported_its_death_is_not_silent() -> None:
    liveness = Liveness(LEASE_S, 1.0)
    for member in "ab":
        liveness.heard(member, 100.0)
    assert liveness.is_silent("a", 101.0)
    assert not liveness.is_silent("a", 100.0)
    assert liveness.is_silent("stranger", 100.0)
    liveness.died("b", 101.0)
    assert not liveness.is_silent("b", 105.0)
