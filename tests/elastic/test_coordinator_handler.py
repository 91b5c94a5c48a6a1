"""A library's nodes and the coordinator: what a program sees of rounds, losses and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest
from tests.harness.coordinator_nodes import LIMIT_S, Place, Program, place

from rallypoint.elastic.rendezvous.api import RendezvousInfo
from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
from rallypoint.elastic.rendezvous.static_tcp_rendezvous import CoordinatorRendezvousHandler
from rallypoint.errors import (
    AccessError,
    ParameterError,
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
    UsageError,
)


def port(info: RendezvousInfo) -> int:
    assert info.bootstrap_store_info is not None
    return info.bootstrap_store_info.master_port


def meet_program(here: Place, handler: CoordinatorRendezvousHandler, program: Program) -> None:
    """Until both are in a round of two; one that was early is asked to grow."""
    while here.meet(handler)[0].world_size < 2:
        assert handler.wait_for_change(LIMIT_S)
    while (said := program.line())[:1] + said[2:3] != ["round", 2]:
        pass


def test_R1_a_round_completes_at_the_maximum_and_its_store_is_common() -> None:
    with place(2, 2, last_call_timeout=1000) as here:
        a, b = here.handler(), here.handler()
        infos = here.meet(a, b)
        assert sorted(info.rank for info in infos) == [0, 1]
        assert [info.world_size for info in infos] == [2, 2]
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == b"value"
        assert infos[0].bootstrap_store_info == infos[1].bootstrap_store_info
        assert a.num_nodes_waiting() == b.num_nodes_waiting() == 0
        assert not a.is_closed()


def test_R1_a_round_completes_after_the_last_call_with_the_minimum() -> None:
    with place(1, 4) as here:
        info = here.go(here.handler()).result(LIMIT_S)
        assert (info.rank, info.world_size) == (0, 1)


def test_R1_W25_who_joins_again_ends_the_round_for_all_and_each_round_has_its_own_store() -> None:
    with place(2, 3, last_call_timeout=0.2) as here:
        a, b = here.handler(), here.handler()
        first = here.meet(a, b)
        first[0].store.set("of the first round", "1")
        changed = threading.Event()
        unsubscribe = b.on_change(changed.set)
        again = here.go(a)
        assert b.wait_for_change(LIMIT_S)
        assert changed.wait(LIMIT_S)
        unsubscribe()
        assert b.num_nodes_waiting() == 1
        assert "came back without its workers" in b.why_over
        second = [*here.meet(b), again.result(LIMIT_S)]
        assert [info.world_size for info in second] == [2, 2]
        assert port(second[0]) == port(second[1]) != port(first[0])
        assert not second[0].store.check(["of the first round"])
        assert a.num_nodes_waiting() == b.num_nodes_waiting() == 0


def test_R1_both_may_ask_for_the_next_round_at_once_and_many_times() -> None:
    with place(2, 2, max_node_losses=1) as here:
        a, b = here.handler(), here.handler()
        for _ in range(20):
            assert sorted(info.rank for info in here.meet(a, b)) == [0, 1]


def test_R2_W1a_a_fresh_node_grows_the_job_and_all_agree_on_the_address() -> None:
    with place(1, 2) as here:
        a, b = here.handler(), here.handler()
        (alone,) = here.meet(a)
        late = here.go(b)
        assert a.wait_for_change(LIMIT_S)
        assert "joined" in a.why_over
        (info,) = here.meet(a)
        other = late.result(LIMIT_S)
        assert (info.rank, other.rank, other.world_size) == (0, 1, 2)
        assert port(info) == port(other) != port(alone)


def test_R2_who_stands_by_disturbs_nobody_and_takes_the_place_of_who_leaves() -> None:
    with place(2, 2) as here:
        a, b, spare = here.handler(), here.handler(), here.handler()
        here.meet(a, b)
        waiting = here.go(spare)
        assert not a.wait_for_change(1.0)
        b.leave()
        assert a.wait_for_change(LIMIT_S)
        (info,) = here.meet(a)
        assert (info.rank, info.world_size) == (0, 2)
        assert waiting.result(LIMIT_S).rank == 1


@pytest.mark.parametrize("ended_well", [True, False])
def test_R5_W5_who_stood_by_until_the_end_was_not_needed(ended_well: bool) -> None:
    with place(2, 2) as here:
        a, b, spare = here.handler(), here.handler(), here.handler()
        here.meet(a, b)
        waiting = here.go(spare)
        while not spare.is_attached:
            assert not waiting.done()
        if ended_well:
            finishing = [here.submit(handler.finish) for handler in (a, b)]
            assert [future.result(LIMIT_S) for future in finishing] == [True, True]
        else:
            assert b.shutdown()
        with pytest.raises(RendezvousGracefulExitError, match="not needed"):
            waiting.result(LIMIT_S)
        assert spare.is_closed()


def test_R3_the_survivor_of_a_killed_node_is_told_and_a_replacement_is_taken_in() -> None:
    with place(2, 2, lease=4) as here:
        survivor, victim = here.handler(), here.program(is_host=False)
        (info,) = here.meet(survivor)
        assert victim.line()[0] == "round"
        victim.kill()
        assert survivor.wait_for_change(LIMIT_S)
        assert survivor.num_nodes_waiting() == 1
        assert "was lost" in survivor.why_over
        again = here.go(survivor)
        replacement = here.program(is_host=False)
        word, rank, size, its_port = replacement.line()
        info = again.result(LIMIT_S)
        assert (word, rank, size, info.rank) == ("round", 1, 2, 0)
        assert its_port == port(info)


def test_R3_a_loss_does_not_need_anybody_to_ask() -> None:
    with place(1, 2, lease=1) as here:
        survivor, victim = here.handler(), here.program(is_host=False)
        meet_program(here, survivor, victim)
        told = threading.Event()
        survivor.on_change(told.set)
        victim.pause()
        assert told.wait(LIMIT_S)


def test_F2_W4_a_node_that_was_paused_past_its_lease_learns_it_and_comes_back() -> None:
    with place(1, 2, lease=1) as here:
        a, paused = here.handler(), here.program(is_host=False)
        meet_program(here, a, paused)
        paused.pause()
        assert a.wait_for_change(LIMIT_S)
        (alone,) = here.meet(a)
        assert alone.world_size == 1
        paused.signal(signal.SIGCONT)
        assert paused.line()[:3] == ["change", 1, False]
        assert a.wait_for_change(LIMIT_S)
        (info,) = here.meet(a)
        assert info.world_size == 2


def test_R5_leaving_is_not_closing_even_for_the_host() -> None:
    with place(1, 3) as here:
        host, a = here.handler(), here.handler()
        here.meet(host, a)
        host.leave()
        assert a.wait_for_change(LIMIT_S)
        assert not a.is_closed()
        assert here.meet(a)[0].world_size == 1
        late = here.go(here.handler())
        assert a.wait_for_change(LIMIT_S)
        assert here.meet(a)[0].world_size == late.result(LIMIT_S).world_size == 2


def test_R5_the_host_closes_the_job_and_every_node_has_heard_when_it_goes() -> None:
    with place(2, 2) as here:
        host, other = here.handler(), here.program(is_host=False)
        here.meet(host)
        assert other.line()[0] == "round"
        assert host.shutdown()
        assert host.is_closed()
        assert other.line()[:3] == ["change", 0, True]
        assert other.end() == 0
        with pytest.raises(RendezvousClosedError):
            host.next_rendezvous()


def test_R5_the_host_waits_for_a_node_that_has_not_heard_yet() -> None:
    with place(2, 2) as here:
        host, other = here.handler(), here.program(is_host=False)
        meet_program(here, host, other)
        other.pause()
        going = here.submit(host.shutdown)
        with pytest.raises(TimeoutError):
            going.result(1.0)
        other.signal(signal.SIGCONT)
        assert going.result(LIMIT_S)
        assert other.line()[:3] == ["change", 0, True]


def test_R5_a_closed_job_takes_nobody_in() -> None:
    with place(2, 2) as here:
        a, b = here.handler(), here.handler()
        here.meet(a, b)
        b.set_closed()
        b.set_closed()
        assert a.wait_for_change(LIMIT_S)
        assert a.is_closed()
        assert a.num_nodes_waiting() == 0
        for handler in (a, b):
            with pytest.raises(RendezvousClosedError, match="closed the rendezvous"):
                handler.next_rendezvous()


def test_R3_a_timeout_names_who_was_missing_and_may_be_followed_by_another_try() -> None:
    with place(2, 2, join_timeout=1) as here:
        a = here.handler()
        with pytest.raises(RendezvousTimeoutError, match="2 nodes, only 1 joined"):
            a.next_rendezvous()
    with place(2, 2, join_timeout=5) as here:
        a, b = here.handler(), here.handler()
        here.meet(a, b)
        b.leave()
        assert a.wait_for_change(LIMIT_S)
        with pytest.raises(RendezvousTimeoutError) as timeout:
            a.next_rendezvous()
        assert "missing" in str(timeout.value)
        assert [info.world_size for info in here.meet(a, here.handler())] == [2, 2]


def test_R3_nobody_hosting_is_a_timeout() -> None:
    with place(2, 2, is_host=False, host_timeout=0.5) as here:
        handler = here.handler()
        with pytest.raises(RendezvousTimeoutError, match="no node hosts"):
            handler.next_rendezvous()


def test_R7_other_settings_are_refused_with_both_sides() -> None:
    with place(1, 3) as here:
        here.meet(here.handler())
        same = "the same min_nodes and max_nodes"
        with pytest.raises(UsageError, match=rf"max_nodes=4.*max_nodes=3.*{same} \(max_nodes\)$"):
            here.handler((1, 4)).next_rendezvous()


def test_F8_a_node_without_the_token_is_refused() -> None:
    with place(1, 2, insecure=False, token="ab" * 16) as here:
        here.meet(here.handler())
        with pytest.raises(AccessError):
            here.handler(token="cd" * 16).next_rendezvous()


def test_a_parameter_that_does_not_exist_is_answered_with_the_nearest() -> None:
    with place(1, 1) as here:
        with pytest.raises(ParameterError, match="join_timeuot: did you mean join_timeout"):
            get_rendezvous_handler(here.params(join_timeuot=3))
        with pytest.raises(ParameterError, match="max_node_losses=-1"):
            get_rendezvous_handler(here.params(max_node_losses=-1))


def test_R6_many_handlers_of_one_process_need_one_thread() -> None:
    before = set(threading.enumerate())
    with place(64, 64, is_host=None) as here:
        handlers = [here.handler() for _ in range(64)]
        infos = here.meet(*handlers)
        assert sorted(info.rank for info in infos) == list(range(64))
        assert {info.world_size for info in infos} == {64}
        names = [t.name for t in set(threading.enumerate()) - before if t.name.startswith("rally")]
        assert len(names) <= 2, names  # the loop, and rank 0's store


def test_a_forked_child_is_a_node_of_its_own() -> None:
    with place(1, 2) as here:
        handler = here.handler()
        here.meet(handler)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                info = handler.next_rendezvous()
                handler.leave()
                code = 10 + info.world_size
            finally:
                os._exit(code)
        assert handler.wait_for_change(LIMIT_S)
        assert here.meet(handler)[0].world_size == 2
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 12
        assert handler.wait_for_change(LIMIT_S)


def test_the_calls_have_twins_for_a_running_loop() -> None:
    with place(2, 2) as here:
        a, b = here.handler(), here.handler()

        async def body() -> None:
            async with asyncio.timeout(LIMIT_S):
                infos = await asyncio.gather(a.next_rendezvous_async(), b.next_rendezvous_async())
                assert {info.world_size for info in infos} == {2}
                assert await a.num_nodes_waiting_async() == 0
                await b.set_closed_async()
                assert await a.wait_for_change_async()
                assert await a.is_closed_async()
                assert await a.shutdown_async()

        asyncio.run(body())
