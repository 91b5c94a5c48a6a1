"""The node of rank 0 is lost after its success: the store that the workers of all nodes use has
gone with it, and what other workers fail of then is a consequence (behaviours A3 and A4)."""

from __future__ import annotations

from msgspec.structs import replace
from tests.harness.job_machine import RULES, A, B, Host, failed, running, stamp

from rallypoint.core import messages as m
from rallypoint.core.messages import FromNode
from rallypoint.core.model import EndKind, NodeRef, Outcome, SharedSettings
from rallypoint.core.round_state import RoundPhase


def one_is_left(ref: NodeRef, settings: SharedSettings = RULES) -> Host:
    """That node has succeeded at 1 and is lost at 3; it was last heard at 2."""
    host = running(replace(settings, max_restarts=0))
    host.step(FromNode(ref, m.Succeeded(stamp())), at=1.0)
    host.at = 3.0
    host.lose(ref, heard_at=2.0)
    assert host.job.round.phase is RoundPhase.ACTIVE
    return host


def test_A4_the_round_goes_on_without_its_store_and_may_succeed() -> None:
    host = one_is_left(A)
    host.step(FromNode(B, m.Succeeded(stamp())), at=4.0)
    assert host.verdict.outcome is Outcome.SUCCEEDED


def test_A3_what_fails_after_the_store_is_lost_is_a_consequence_of_that() -> None:
    host = one_is_left(A)
    host.fail(B, failed(), at=4.0)
    host.join(B)
    assert host.job.verdict is None
    assert host.job.ledger.total == 0
    assert host.job.end_reason is not None
    assert (host.job.end_reason.kind, host.job.end_reason.node_id) == (EndKind.LOSS, "a")
    assert [record.name for record in host.records].count("restart") == 0
    host.join(A)
    assert host.job.round.round == 1
    assert host.job.store_lost is None


def test_A3_a_failure_is_a_workers_own_while_the_node_of_the_store_is_there() -> None:
    host = one_is_left(B)
    host.fail(A, failed(), at=4.0)
    host.join(A)
    assert host.verdict.outcome is Outcome.FAILED


def test_R3_a_job_that_only_burns_ends_by_such_losses_too() -> None:
    host = one_is_left(A, replace(RULES, max_node_losses_per_hour=0))
    host.fail(B, failed(), at=4.0)
    host.join(B)
    assert host.verdict.outcome is Outcome.INFRASTRUCTURE
