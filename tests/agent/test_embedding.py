"""An agent in somebody's program, and what a signal handler of that program raises meanwhile."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from rallypoint.agent.embedding import run_to_its_end, start_in_thread


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(autouse=True)
def late() -> Iterator[None]:
    def handler(number: int, frame: object) -> None:
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    assert signal.getsignal(signal.SIGUSR1) is handler, "it was put back"
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGUSR1)


class Interrupted(asyncio.Protocol):
    """A signal comes while data is handled. asyncio takes a TimeoutError there for the peer's."""

    def data_received(self, data: bytes) -> None:
        interrupt()


async def in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(interrupt)


async def in_a_protocol() -> None:
    from socket import socketpair

    ours, theirs = socketpair()
    await asyncio.get_running_loop().create_connection(Interrupted, sock=ours)
    with theirs:
        theirs.send(b"x")
        await asyncio.sleep(0)


async def in_the_task_itself() -> None:
    interrupt()


@pytest.mark.parametrize("begin", [in_a_callback, in_a_protocol, in_the_task_itself])
def test_A6_what_a_programs_handler_raises_reaches_the_program_wherever_it_was_interrupted(
    loop: asyncio.AbstractEventLoop, begin: Callable[[], object]
) -> None:
    ended: list[str] = []

    async def agent() -> None:
        try:
            await begin()  # type: ignore[misc]
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("in order")

    mistaken: list[object] = []
    loop.set_exception_handler(lambda loop, context: mistaken.append(context))
    with pytest.raises(TimeoutError, match="too long"):
        run_to_its_end(loop, agent())
    assert ended == ["in order"]
    assert mistaken == []


def test_an_agent_that_nobody_interrupts_gives_its_result(loop: asyncio.AbstractEventLoop) -> None:
    async def agent() -> int:
        return 7

    assert run_to_its_end(loop, agent()) == 7


@pytest.mark.parametrize("failure", [None, RuntimeError("a bug")])
def test_A6_what_a_programs_handler_raises_is_not_lost_when_the_agent_ends_at_that_moment(
    loop: asyncio.AbstractEventLoop, failure: Exception | None
) -> None:
    async def agent() -> None:
        interrupt()
        if failure is not None:
            raise failure

    with pytest.raises(TimeoutError, match="too long") as raised:
        run_to_its_end(loop, agent())
    assert raised.value.__cause__ is failure


def test_what_waits_for_an_agent_in_a_thread_waits_until_the_thread_has_ended() -> None:
    before, seen = threading.enumerate(), threading.Event()

    def after_the_result() -> None:
        seen.wait(0.2)

    wait, take = start_in_thread(lambda: 7, after_the_result)
    wait()
    left = threading.enumerate()
    seen.set()
    assert set(left) <= set(before)
    assert take() == 7
