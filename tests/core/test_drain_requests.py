"""Behaviour A5: a person asks the coordinator that a node leaves; decided without sockets."""

from __future__ import annotations

import signal

from tests.harness.narrowed import known, of_kind, only
from tests.harness.takeovers import running
from tests.harness.whole_job import Cluster, SimulatedAgent

from rallypoint.core import host_effects
from rallypoint.core import messages as m
from rallypoint.core import sessions as c
from rallypoint.core.events import Timer, TimerEnded, TimerKind
from rallypoint.core.job_requests import UNATTENDED_MAX, DrainRequest, Drains
from rallypoint.core.job_state import new_job
from rallypoint.core.model import Candidate, SharedSettings
from rallypoint.core.takeover.handover import Predecessor

RULES = SharedSettings("job", 1, 2, lease_s=15.0, reconnect_grace_s=5.0)
AGENT, PERSON, OTHER = 1, 8, 9
"""Numbers of connections."""


def sessions_with(node_id: str = "a") -> c.Sessions:
    """A coordinator to which one agent has attached."""
    sessions = c.Sessions(new_job(RULES), 1)
    attach(sessions, AGENT, node_id)
    return sessions


def attach(
    sessions: c.Sessions, connection: int, node_id: str = "a", generation: int = 1
) -> list[host_effects.HostEffect]:
    opened = 0 if generation == 1 else 1
    hello = m.Attach(node_id, "host", node_id, generation, RULES, opened)
    return sessions.attach(connection, "10.0.0.1", hello, 0.0)


def report(sessions: c.Sessions, number: int, report: m.Report) -> list[host_effects.HostEffect]:
    return sessions.received(AGENT, m.Numbered(number, report), 1.0)


def sent(effects: list[host_effects.HostEffect], connection: int) -> list[m.ToAgent]:
    sends = (effect for effect in effects if isinstance(effect, host_effects.SendTo))
    return [send.message for send in sends if send.connection == connection]


def wanted(effects: list[host_effects.HostEffect], connection: int = AGENT) -> list[str]:
    """Why the agent on this connection is asked to leave."""
    return [one.why for one in sent(effects, connection) if isinstance(one, m.DrainWanted)]


def test_A5_the_node_is_asked_and_the_person_hears_when_it_has_left() -> None:
    sessions = sessions_with()
    effects = sessions.drain(DrainRequest(PERSON, "a", "maintenance"))
    assert sent(effects, PERSON) == [m.DrainAnswer("node a was asked to leave", done=False)]
    assert wanted(effects) == ["maintenance"]
    assert host_effects.HangUp(PERSON) not in effects
    effects = report(sessions, 1, m.Leave())
    assert sent(effects, PERSON) == [m.DrainAnswer("node a has left", done=True)]
    assert host_effects.HangUp(PERSON) in effects


def test_A5_a_person_hears_of_a_node_that_is_lost_instead() -> None:
    sessions = sessions_with()
    sessions.drain(DrainRequest(PERSON, "a", "maintenance"))
    effects = sessions.lose("a", "it sent no heartbeat for 15 s", 1.0, 16.0)
    text = "node a was lost: it sent no heartbeat for 15 s"
    assert sent(effects, PERSON) == [m.DrainAnswer(text, done=True)]


def test_A5_a_node_that_is_away_is_asked_when_it_attaches_again() -> None:
    sessions = sessions_with()
    sessions.connection_closed(AGENT, 1.0, reset=True)
    effects = sessions.drain(DrainRequest(PERSON, "a", "maintenance"))
    text = "node a is not connected now, and will be asked to leave when it is"
    assert effects == [host_effects.SendTo(PERSON, m.DrainAnswer(text, done=False))]
    assert wanted(attach(sessions, 2, generation=2), 2) == ["maintenance"]
    assert wanted(attach(sessions, 3, generation=3), 3) == ["maintenance"], "again: it may be new"


def test_A5_a_node_that_leaves_already_is_not_asked_again() -> None:
    sessions = sessions_with()
    report(sessions, 1, m.Join(1, Candidate(1, "default", "10.0.0.1", 5000)))
    report(sessions, 2, m.Drain("SIGTERM", 15))
    effects = sessions.drain(DrainRequest(PERSON, "a", "maintenance"))
    assert sent(effects, PERSON) == [m.DrainAnswer("node a is leaving already", done=False)]
    assert wanted(effects) == []


def test_A5_a_node_that_is_not_there_is_named_with_those_that_are() -> None:
    sessions = sessions_with("b")
    attach(sessions, 2, "a")
    effects = sessions.drain(DrainRequest(PERSON, "z", "maintenance"))
    text = "there is no node 'z' in the job; there are a, b"
    answer = m.DrainAnswer(text, done=True, found=False)
    assert effects == [host_effects.SendTo(PERSON, answer), host_effects.HangUp(PERSON)]
    [answer_of_empty, _] = c.Sessions(new_job(RULES), 1).drain(
        DrainRequest(PERSON, "z", "maintenance")
    )
    assert isinstance(answer_of_empty, host_effects.SendTo)
    assert isinstance(answer_of_empty.message, m.DrainAnswer)
    assert answer_of_empty.message.text.endswith("in the job; the job has no nodes")


def test_A5_all_who_wait_are_answered_but_those_that_hung_up() -> None:
    sessions = sessions_with()
    for person in (PERSON, OTHER, 10):
        sessions.drain(DrainRequest(person, "a", f"asked by {person}"))
    sessions.connection_closed(OTHER, 1.0, reset=False)
    effects = report(sessions, 1, m.Leave())
    assert [len(sent(effects, person)) for person in (PERSON, OTHER, 10)] == [1, 0, 1]


def test_A5_a_request_is_for_the_agent_that_was_there_not_for_the_next_one() -> None:
    sessions = sessions_with()
    sessions.drain(DrainRequest(PERSON, "a", "maintenance"))
    report(sessions, 1, m.Leave())
    hello = m.Attach("a", "host", "life 2", 1, RULES)
    assert wanted(sessions.attach(5, "10.0.0.1", hello, 2.0), 5) == []


def taken_over() -> tuple[Cluster, list[SimulatedAgent]]:
    """A coordinator that has just taken over a job of two nodes: none of them has come yet."""
    cluster, agents = running(2)
    cluster.take_over()
    return cluster, agents


def comes(cluster: Cluster, agent: SimulatedAgent) -> tuple[int, list[host_effects.HostEffect]]:
    """This agent attaches to the coordinator: the number of its connection, and what is done."""
    cluster.connect(agent)
    hello = of_kind(m.Attach, known(agent.link).up.popleft())
    number = known(agent.link).number
    return number, cluster.sessions.attach(number, "10.0.0.1", hello, cluster.timers.now_s)


def nobody_else_comes(cluster: Cluster) -> list[host_effects.HostEffect]:
    """It is known what runs."""
    return cluster.sessions.apply(TimerEnded(Timer(TimerKind.RECOVERY)), 30.0)


def test_A5_L5_a_drain_that_is_earlier_than_its_node_after_a_takeover_waits_for_it() -> None:
    cluster, (a, b) = taken_over()
    assert cluster.sessions.drain(DrainRequest(PERSON, "b", "maintenance")) == []
    number, effects = comes(cluster, a)
    assert sent(effects, PERSON) == []
    assert wanted(effects, number) == []
    number, effects = comes(cluster, b)
    assert sent(effects, PERSON) == [m.DrainAnswer("node b was asked to leave", done=False)]
    assert wanted(effects, number) == ["maintenance"]
    effects = cluster.sessions.received(number, m.Numbered(99, m.Leave()), 1.0)
    assert sent(effects, PERSON) == [m.DrainAnswer("node b has left", done=True)]


def test_A5_L5_a_node_that_has_come_is_asked_before_all_the_others_have() -> None:
    cluster, (a, b) = taken_over()
    cluster.sessions.drain(DrainRequest(OTHER, "a", "maintenance"))
    number, effects = comes(cluster, a)
    assert wanted(effects, number) == ["maintenance"]
    assert sent(effects, OTHER) == [m.DrainAnswer("node a was asked to leave", done=False)]
    effects = cluster.sessions.drain(DrainRequest(PERSON, "a", "again"))
    assert wanted(effects, number) == ["again"]
    assert sent(effects, PERSON) == [m.DrainAnswer("node a was asked to leave", done=False)]
    _, effects = comes(cluster, b)
    assert wanted(effects, number) == [], "it was asked already"


def test_A5_L5_who_drains_a_node_that_does_not_come_hears_so_when_nobody_is_waited_for() -> None:
    cluster, (a, _) = taken_over()
    for person, node_id in ((PERSON, "b"), (OTHER, "z")):
        assert cluster.sessions.drain(DrainRequest(person, node_id, "maintenance")) == []
    comes(cluster, a)
    effects = nobody_else_comes(cluster)
    lost = "node b was lost: it did not come to the coordinator that took over"
    for person, node_id, gone in ((PERSON, "b", lost), (OTHER, "z", "")):
        text = f"there is no node {node_id!r} in the job; there are a"
        assert sent(effects, person) == [m.DrainAnswer(text, done=True, found=False, gone=gone)]
        assert host_effects.HangUp(person) in effects


def test_A5_L5_who_drains_a_node_that_has_left_before_a_takeover_hears_so_at_once() -> None:
    """Though nobody else has come."""
    cluster, (_, b) = running(2)
    cluster.signal(b, signal.SIGTERM)
    cluster.settle()
    assert b.is_done
    cluster.take_over()
    effects = cluster.sessions.drain(DrainRequest(PERSON, "b", "maintenance"))
    answer = only(m.DrainAnswer, sent(effects, PERSON))
    assert answer.gone == "node b has left"
    assert host_effects.HangUp(PERSON) in effects
    again = cluster.start("b")
    cluster.bring(again)
    cluster.take_over()
    # It is back, and awaited.
    assert cluster.sessions.drain(DrainRequest(PERSON, "b", "maintenance")) == []


def test_A5_L5_who_drains_a_leader_that_was_killed_hears_so_at_once() -> None:
    cluster, (a, _) = running(2)
    cluster.agents.remove(a)
    dead = Predecessor(rank=0, is_dead=True, fenced_in_s=0.0)
    cluster.take_over(dead)
    effects = cluster.sessions.drain(DrainRequest(PERSON, "a", "maintenance"))
    answer = only(m.DrainAnswer, sent(effects, PERSON))
    assert answer.gone.startswith("node a was lost: its agent died")


def test_A5_L5_who_drains_a_node_that_there_is_not_hears_so_when_all_have_come() -> None:
    cluster, (a, b) = taken_over()
    cluster.sessions.drain(DrainRequest(PERSON, "z", "maintenance"))
    comes(cluster, a)
    _, effects = comes(cluster, b)
    (answer,) = sent(effects, PERSON)
    assert answer == m.DrainAnswer(
        "there is no node 'z' in the job; there are a, b", done=True, found=False
    )


def test_A5_L5_a_node_leaves_though_the_person_hung_up_before_it_had_come() -> None:
    cluster, (a, b) = taken_over()
    for person, node_id in ((PERSON, "b"), (OTHER, "z")):
        cluster.sessions.drain(DrainRequest(person, node_id, "maintenance"))
        cluster.sessions.connection_closed(person, 1.0, reset=True)
    comes(cluster, a)
    number, effects = comes(cluster, b)
    assert wanted(effects, number) == ["maintenance"]
    effects += cluster.sessions.received(number, m.Numbered(99, m.Leave()), 1.0)
    assert sent(effects, PERSON) == sent(effects, OTHER) == []


def test_people_who_ask_and_hang_up_again_and_again_do_not_fill_a_coordinator() -> None:
    drains = Drains()
    for number in range(3 * UNATTENDED_MAX):
        drains.keep(DrainRequest(number, f"node-{number}", "maintenance"))
        drains.hung_up(number)
    kept = drains.take(lambda node_id: True)
    assert len(kept) == UNATTENDED_MAX
    assert kept[0] == DrainRequest(None, "node-0", "maintenance")
    assert drains.take(lambda node_id: True) == []
