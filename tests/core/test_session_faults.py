"""Both ends of the session protocol where one thing goes wrong within another."""

from __future__ import annotations

from tests.harness.narrowed import of_kind

from rallypoint.core import job as jobs
from rallypoint.core import messages as m
from rallypoint.core import session as s
from rallypoint.core import sessions as c
from rallypoint.core.host_effects import Faulted, HostEffect, SendTo
from rallypoint.core.job_state import JobEffect, JobEvent, new_job
from rallypoint.core.model import Assignment, Candidate, EndKind, EndReason, SharedSettings, Stamp
from rallypoint.core.node.events import LeaseEnded

RULES = SharedSettings("job", 1, 2, static=True, lease_s=15.0, reconnect_grace_s=5.0)


def candidate(node_rank: int) -> Candidate:
    return Candidate(1, "default", "10.0.0.1", 5000, node_rank=node_rank)


def attached(node_id: str) -> s.AgentEnd:
    """The session of this node, which has been opened."""
    end = s.AgentEnd(s.Identity(node_id, "host", "life"), RULES)
    end.connected(0.0, m.Claim())
    end.received(0.0, m.Attached(node_id, 1, 1, False))
    return end


def test_F1_what_is_reported_as_the_lease_ends_comes_after_what_was_reported_before() -> None:
    end = attached("a")
    end.disconnected(1.0, "cut")
    end.report(m.Drain("told to", 15), 0.0)
    end.connected(2.0, m.Claim())
    sent: list[int] = []
    # The process was stopped after it woke up: what arrived meanwhile is read past the lease.
    for effect in end.received(100.0, m.Attached("a", 1, 1, True)):
        match effect:
            case LeaseEnded():
                for later in end.report(m.Join(1, candidate(0)), 0.0):
                    assert isinstance(later, s.Send)
                    sent.append(of_kind(m.Numbered, later.message).number)
            case s.Send(m.Numbered(number)):
                sent.append(number)
    assert sent == [1, 2]


def test_R3_the_loss_of_one_node_is_told_though_the_join_of_another_raises() -> None:
    """That one has waited for its place."""
    raises = False

    def machine(job: jobs.JobState, event: JobEvent, at: float) -> list[JobEffect]:
        if raises and isinstance(event, m.FromNode) and isinstance(event.message, m.Join):
            raise RuntimeError("broken")
        return jobs.step(job, event, at)

    rules = SharedSettings("job", 2, 2, static=True, reconnect_grace_s=5.0)
    sessions = c.Sessions(new_job(rules), 1, machine=machine)

    def arrive(connection: int, node: str, rank: int, now: float) -> list[HostEffect]:
        hello = m.Attach(node, "host", node, 1, rules)
        effects = sessions.attach(connection, "10.0.0.1", hello, now)
        join = m.Numbered(1, m.Join(1, candidate(rank)))
        return effects + sessions.received(connection, join, now)

    arrive(1, "a", 0, 0.0)
    told = arrive(2, "b", 1, 0.0)
    assert any(isinstance(e, SendTo) and isinstance(e.message, m.Assigned) for e in told)
    sessions.connection_closed(2, 1.0, reset=False)
    raises = True
    arrive(3, "c", 1, 2.0)
    assert sessions.check(6.0) == []
    found = sessions.check(6.0)
    to_a = [e.message for e in found if isinstance(e, SendTo) and e.connection == 1]
    assert [type(message) for message in to_a] == [m.StopNow]
    (faulted,) = (e for e in found if isinstance(e, Faulted))
    raises = False
    told = sessions.received(1, m.Numbered(2, m.Join(2, candidate(0))), 7.0)
    assert not any(isinstance(e, SendTo) and isinstance(e.message, m.Assigned) for e in told)
    told = sessions.apply_own(faulted.event, 8.0)
    assert sum(isinstance(e, SendTo) and isinstance(e.message, m.Assigned) for e in told) == 2


def test_L5_a_place_that_is_told_again_does_not_answer_a_newer_join() -> None:
    end = s.AgentEnd(s.Identity("a", "host", "life"), RULES)
    place = Assignment(0, 0, 1, 0, 1, 0, 1, "10.0.0.1", 5000, 0, "first", False)
    for now, seq in (0.0, 1), (20.0, 2):
        end.report(m.Join(seq, candidate(0)), now)
        end.connected(now, m.Claim())
        end.received(now, m.Attached("a", 1, 1, True))
        end.received(now, m.Assigned(Stamp(1, 0), place))
    assert end.place == m.Place(m.Join(1, candidate(0)), place)


def test_F2_a_connection_after_a_silence_is_kept_though_heartbeats_of_the_last_had_no_answer() -> (
    None
):
    end = attached("a")
    for now in (1.0, 4.0, 7.0):
        assert not drops(end.beat(now))
    assert drops(end.beat(9.0)), "half of the lease without an answer"
    end.disconnected(9.0, "dropped")
    end.connected(9.5, m.Claim())
    assert not drops(end.beat(9.6)), "it is not attached yet"
    end.received(9.7, m.Attached("a", 1, 1, True))
    for now in (9.8, 12.0, 15.0):
        assert not drops(end.beat(now))
    assert drops(end.beat(18.0))


def test_F2_a_connection_on_which_the_coordinator_takes_long_to_attach_the_agent_is_kept() -> None:
    end = s.AgentEnd(s.Identity("a", "host", "life"), RULES)
    end.connected(0.0, m.Claim())
    assert not drops(end.beat(1.0))
    end.received(8.0, m.Attached("a", 1, 1, True))
    for now in (8.1, 10.0, 13.0):
        assert not drops(end.beat(now)), "it has answered a moment ago"
    assert drops(end.beat(16.0))


def drops(effects: list[s.AgentEffect]) -> bool:
    return any(isinstance(effect, s.Drop) for effect in effects)


def held(effects: list[s.AgentEffect]) -> list[float]:
    return [effect.until for effect in effects if isinstance(effect, s.Held)]


def test_L4_the_lease_of_a_node_that_leads_is_renewed_when_it_knows_that_it_leads_on() -> None:
    vouched_at = 2.0
    rules = s.SessionRules(vouched_at=lambda: vouched_at)
    end = s.AgentEnd(s.Identity("a", "host", "life"), RULES, rules)
    end.connected(5.0, m.Claim())
    assert held(end.received(6.0, m.Attached("a", 1, 1, False))) == [17.0]
    vouched_at = 16.0
    assert held(end.received(17.0, m.StopNow(Stamp(1, 0), EndReason(EndKind.LOSS, "gone")))) == [
        20.0
    ]


def test_L4_a_node_whose_lease_is_over_gives_a_new_place_back_and_starts_no_worker() -> None:
    rules = s.SessionRules(vouched_at=lambda: 2.0)
    end = s.AgentEnd(s.Identity("a", "host", "life"), RULES, rules)
    for now in (5.0, 30.0):
        end.connected(now, m.Claim())
        end.received(now, m.Attached("a", 1, 1, True))
        end.woke_up(now)
    place = Assignment(0, 0, 1, 0, 1, 0, 1, "10.0.0.1", 5000, 0, "first", False)
    effects = end.received(31.0, m.Assigned(Stamp(1, 0), place))
    assert isinstance(effects[-2], s.OrderPushed)
    assert isinstance(effects[-1], LeaseEnded)


def test_A5_a_node_that_has_left_makes_no_new_connection() -> None:
    """`rallypoint drain b` named such a node as one that was not connected now."""
    end = attached("b")
    end.report(m.Drain("told to", 15), 1.0)
    end.report(m.Leave(), 2.0)
    end.received(3.0, m.Ack(1))
    assert not end.is_closed, "the coordinator does not know yet that the node leaves"
    end.received(3.0, m.Ack(2))
    assert end.is_closed
    assert end.disconnected(3.0, "the coordinator has hung up") == []
