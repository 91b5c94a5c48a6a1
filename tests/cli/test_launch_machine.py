"""A launch without hosts: what it does at each message, loss and signal, and its exit code."""

from __future__ import annotations

import signal
from itertools import permutations
from signal import SIGHUP, SIGINT, SIGTERM

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.launch_scenario import asked_for, ended
from tests.harness.properties import examples

from rallypoint import __version__
from rallypoint.cli.launch import machine as launch
from rallypoint.cli.launch.machine import HostPart
from rallypoint.wire.launch_link import (
    AgentRefused,
    Beat,
    Deliver,
    FromHost,
    Hello,
    Here,
    Start,
    Started,
)

HERE = Here(__version__)
GONE = "ssh exited with 255"


class Launching:
    """One launch, and what it has done. Nothing is told by hosts that were not reached."""

    def __init__(self, names: str, nodes: str, *, detach: bool = False) -> None:
        self.names = names.split(",")
        self.state = launch.begin(asked_for(names, nodes, detach=detach), 0.0)
        self.least, self.now = self.state.asked.plan.least, 0.0
        self.reached: list[str] = []
        self.broken: set[str] = set()
        self.starts: dict[str, Start] = {}
        self.delivered: list[tuple[str, int]] = []
        self.said: list[str] = []
        self.shown: list[launch.ShowLast] = []
        self.is_hurried = False
        self.end: launch.Over | None = None
        self.caught: list[int] = []
        """The signals that had come before the end."""
        self.step(launch.TimePassed())

    def step(self, event: launch.Event) -> list[launch.Effect]:
        runs = set(self.state.those(HostPart.RUNS))
        effects = launch.step(self.state, event, self.now)
        for effect in effects:
            self._check(effect, runs)
        left = self.state.those(HostPart.RUNS)
        too_few = len(left) + len(self.state.those(HostPart.ENDED)) < self.least
        if not self.state.asked.detach and (too_few or self.state.caught):
            assert set(left) <= {name for name, _ in self.delivered}, "nobody runs on unended"
        return effects

    def _check(self, effect: launch.Effect, runs: set[str]) -> None:
        assert self.end is None or isinstance(effect, launch.Hurry), "it is over"
        match effect:
            case launch.Reach(name):
                assert name not in self.reached
                self.reached.append(name)
            case launch.Send(name, Start() as start):
                assert name in self.state.hellos
                assert name not in self.broken
                assert name not in self.starts
                self.starts[name] = start
            case launch.Send(name, message):
                assert isinstance(message, Beat | Deliver)
                assert name in self.starts
                assert name in runs
                assert name not in self.broken
                if isinstance(message, Deliver):
                    self.delivered.append((name, message.signal))
            case launch.Say(text):
                self.said.append(text)
            case launch.Print(lines):
                self.said += lines
            case launch.ShowLast():
                self.shown.append(effect)
            case launch.Hurry():
                self.is_hurried = True
            case launch.Over():
                self.end, self.caught = effect, list(self.state.caught)

    def hears(self, name: str, *messages: FromHost) -> None:
        for message in messages:
            if name in self.reached and name not in self.broken:
                self.step(launch.Heard(name, message))

    def there(self, *names: str, address: str = "10.0.0.1") -> None:
        for name in names:
            self.hears(name, HERE, Hello(address, 20000))

    def loses(self, name: str, *, is_mistake: bool = False) -> None:
        if name in self.reached and name not in self.broken:
            self.broken.add(name)
            self.step(launch.LinkEnded(name, GONE, is_mistake))

    def signal(self, number: int) -> None:
        self.step(launch.Signalled(number))

    def tick(self, seconds: float = launch.BEAT_S) -> list[launch.Effect]:
        self.now += seconds
        return self.step(launch.TimePassed())

    @property
    def code(self) -> int | None:
        return None if self.end is None else self.end.code

    @property
    def leaders(self) -> list[str]:
        """The hosts that were told to host the job."""
        return [n for n, told in self.starts.items() if "--rdzv-conf=is_host=true" in told.argv]


def running(nodes: str, names: str = "a,b,c") -> Launching:
    made = Launching(names, nodes)
    made.there(*made.names)
    assert list(made.starts) == made.names
    return made


def test_agents_start_when_all_hosts_have_answered_or_failed() -> None:
    made = Launching("a,b,c", "2:3")
    made.there("a", "c")
    assert not made.starts
    made.loses("b")
    assert list(made.starts) == ["a", "c"]
    assert "--nnodes=2:2" in made.starts["a"].argv, "nobody waits for nodes that can't come"
    assert made.said[0] == f"b: {GONE}"
    assert made.said[1].startswith("job digits starts on 2 hosts, without b; the nodes connect at")


def test_a_host_that_has_answered_and_is_lost_before_the_start_does_not_count() -> None:
    made = Launching("a,b", "2")
    made.there("a")
    made.loses("a")
    made.there("b")
    assert not made.starts
    assert made.code == 75


def test_the_first_host_that_others_can_reach_hosts_the_job() -> None:
    made = Launching("a,b,c", "3")
    made.there("a", address="127.0.0.1")
    made.there("b", address="::1")
    made.there("c", address="10.0.0.3")
    assert made.leaders == ["c"]
    assert {word for told in made.starts.values() for word in told.argv if "endpoint" in word} == {
        "--rdzv-endpoint=10.0.0.3:20000"
    }


def test_where_all_hosts_are_this_machine_the_first_hosts_the_job() -> None:
    made = Launching("a,b", "2")
    made.there("b", "a", address="127.0.0.1")
    assert made.leaders == ["a"]


def test_no_more_hosts_are_reached_at_once_than_a_machine_between_takes() -> None:
    names = [f"n{number}" for number in range(launch.AT_ONCE + 3)]
    made = Launching(",".join(names), "1:99")
    assert made.reached == names[: launch.AT_ONCE]
    made.hears(names[0], HERE)
    made.hears(names[0], Hello("", 1))
    assert made.reached == names[: launch.AT_ONCE + 1], "one more for each that has answered"
    made.loses(names[1])
    assert made.reached == names[: launch.AT_ONCE + 2]
    made.signal(SIGINT)
    made.loses(names[2])
    assert len(made.reached) == launch.AT_ONCE + 2, "after the end none is reached"


def test_a_host_that_does_not_answer_in_a_minute_is_not_waited_for() -> None:
    made = Launching("a,b", "1:2")
    made.there("a")
    made.tick(launch.REACH_S - 0.1)
    assert not made.starts
    effects = made.tick(0.1)
    assert launch.Kill("b") in effects
    assert list(made.starts) == ["a"]
    assert made.said[0] == "b: can't be used: it has not answered in 60 s"
    assert not [each for each in made.tick(launch.REACH_S) if isinstance(each, launch.Kill)]


def test_hosts_that_were_not_reached_in_a_minute_are_never_reached() -> None:
    made = Launching(",".join(f"n{number}" for number in range(launch.AT_ONCE + 1)), "1:99")
    made.there("n0")  # which has the last one reached
    made = Launching(",".join(f"n{number}" for number in range(launch.AT_ONCE + 1)), "2:99")
    made.tick(launch.REACH_S)
    assert made.code == 75
    assert len(made.reached) == launch.AT_ONCE


@pytest.mark.parametrize(
    ("mistakes", "code"), [((True, True), 2), ((True, False), 75), ((False, False), 75)]
)
def test_only_mistakes_are_wrong_usage(mistakes: tuple[bool, bool], code: int) -> None:
    made = Launching("a,b,c", "3")
    made.there("c")
    for name, is_mistake in zip("ab", mistakes, strict=True):
        made.loses(name, is_mistake=is_mistake)
    assert made.code == code
    assert made.said[-1] == (
        "rallypoint: nothing was started: 1 host can take part, and --nodes needs 3; without a, b"
    )


@pytest.mark.parametrize("message", [Here("0.1"), AgentRefused("train.py: no such file")])
def test_what_a_host_lacks_is_said_once_and_is_wrong_usage(message: FromHost) -> None:
    made = Launching("a", "1")
    effects = made.step(launch.Heard("a", message))
    assert launch.HangUp("a") in effects
    made.hears("a", message, HERE, Hello("", 1))
    made.loses("a")
    assert made.code == 2
    assert [text[:6] for text in made.said] == ["a: can", "rallyp"]


def test_hosts_whose_agents_run_hear_of_this_side_every_two_seconds() -> None:
    made = Launching("a,b", "2")
    assert made.tick() == []
    made.there("a", "b")
    made.hears("b", ended(0, "succeeded"))
    assert made.tick() == [launch.Send("a", Beat())]


def test_the_job_goes_on_while_enough_are_left() -> None:
    made = running("2")
    made.hears("b", ended(1))
    assert not made.delivered
    made.hears("c", ended(143, "preempted"))
    assert made.delivered == [("a", SIGTERM)]
    made.hears("a", ended(143, "preempted"))
    assert made.code == 75, "that of the want of hosts, since no agent tells of the job's own end"


def test_agents_that_end_with_the_job_are_not_missed() -> None:
    made = running("2", "a,b")
    made.hears("a", ended(0, "succeeded"))
    assert not made.delivered
    assert made.end is None
    made.hears("b", ended(0, "succeeded"))
    assert made.code == 0


def test_a_host_that_was_lost_does_not_make_a_healed_job_fail() -> None:
    made = running("1:3")
    made.hears("a", ended(-9))
    made.hears("b", ended(75, "infrastructure"))
    made.hears("c", ended(0, "succeeded"))
    assert made.code == 0
    assert made.shown[-3:] == [
        launch.ShowLast(("c",), as_one_host=False),
        launch.ShowLast(("a",)),
        launch.ShowLast(("b",)),
    ]
    assert "a: its agent was killed by SIGKILL" in made.said


def test_a_job_that_succeeds_while_it_is_ended_for_want_of_hosts_has_succeeded() -> None:
    made = running("3")
    made.loses("b")
    assert made.delivered == [("a", SIGTERM), ("c", SIGTERM)]
    made.hears("a", ended(0, "succeeded"))
    made.hears("c", ended(143, "preempted"))
    assert made.code == 0


def test_where_nobody_says_how_it_ended_there_is_no_verdict() -> None:
    made = running("1:2", "a,b")
    made.hears("a", ended(1))
    made.loses("b")
    assert made.code == 75
    assert made.said[-1] == "rallypoint: no agent reported how the job ended"
    assert "a: its agent exited with code 1" in made.said


def test_a_person_reads_how_an_agent_ended_that_says_nothing_itself() -> None:
    made = running("1:3")
    made.hears("a", ended(-SIGTERM))
    made.signal(SIGTERM)
    made.hears("b", ended(-9))
    made.hears("c", ended(0))
    assert [text for text in made.said if "its agent" in text] == [
        "a: its agent was killed by SIGTERM",
        "b: its agent was killed by SIGKILL",
        "c: its agent exited with code 0",
    ]


def test_a_signal_after_too_few_were_left_does_not_change_the_exit_code() -> None:
    made = running("3")
    made.loses("b")
    made.signal(SIGINT)
    made.loses("a")
    made.loses("c")
    assert made.code == 75


def test_an_agent_that_can_not_be_started_is_a_mistake_and_too_few_end_the_job() -> None:
    made = running("2", "a,b")
    made.hears("b", AgentRefused("no space left on device"))
    assert made.delivered == [("a", SIGTERM)]
    made.hears("a", ended(-SIGTERM))
    assert made.code == 2
    assert not [text for text in made.said if "killed" in text], "it had begun a moment ago"


def test_wrong_usage_that_an_agent_finds_has_its_code() -> None:
    made = running("1:2", "a,b")
    made.hears("a", ended(2))
    made.hears("b", ended(2))
    assert made.code == 2


def test_wrong_usage_that_leaves_too_few_is_the_code_of_a_job_that_is_ended_for_it() -> None:
    made = running("2", "a,b")
    made.hears("b", ended(2))
    assert made.delivered == [("a", SIGTERM)]
    made.hears("a", ended(143, "preempted"))
    assert made.code == 2


@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGHUP])
def test_a_signal_before_the_start_ends_the_launch(number: signal.Signals) -> None:
    made = Launching("a,b", "1:2")
    made.there("a")
    made.signal(number)
    assert made.end == launch.Over(128 + number, 0.0)
    assert made.said == [f"got {number.name}: nothing was started"]
    made.there("b")
    assert not made.starts


def test_a_second_signal_is_passed_on_and_a_third_waits_for_no_host() -> None:
    made = running("2", "a,b")
    made.signal(SIGINT)
    made.now += launch.APART_S - 0.1
    made.signal(SIGINT)
    assert made.delivered == [("a", SIGINT), ("b", SIGINT)], "so close they are one"
    made.now += 0.1
    made.signal(SIGINT)
    made.hears("a", ended(130, "cancelled"))
    assert made.delivered[2:] == [("a", SIGINT), ("b", SIGINT)]
    assert made.end is None
    assert not made.is_hurried
    made.signal(SIGTERM)
    assert made.is_hurried
    assert "b: not waited for" in made.said
    assert made.end == launch.Over(130, 0.0)


def test_signals_of_two_kinds_are_two_however_close() -> None:
    made = running("2", "a,b")
    made.signal(SIGINT)
    made.signal(SIGTERM)
    assert made.delivered[2:] == [("a", SIGTERM), ("b", SIGTERM)]
    made.signal(SIGINT)
    assert made.code == 130, "the first one tells"


def test_after_the_end_three_signals_still_end_the_wait_for_the_console() -> None:
    made = running("1", "a")
    made.hears("a", ended(0, "succeeded"))
    assert made.end == launch.Over(0, launch.BEAT_S)
    for number in (SIGINT, SIGTERM, SIGINT):
        assert not made.is_hurried
        made.signal(number)
    assert made.is_hurried


def test_a_job_that_a_person_ends_is_not_ended_for_want_of_hosts() -> None:
    made = running("2", "a,b")
    made.signal(SIGTERM)
    made.loses("a")
    made.hears("b", ended(-SIGTERM))
    assert made.delivered == [("a", SIGTERM), ("b", SIGTERM)]
    assert made.code == 143


def test_with_detach_the_launch_ends_when_all_agents_run() -> None:
    made = Launching("a,b", "2", detach=True)
    made.there("b", "a")
    made.hears("b", Started(2, "/b.log"))
    made.loses("b")
    assert made.end is None
    made.hears("a", Started(1, "/a.log"))
    assert made.code == 0
    assert made.said[2:4] == [
        "    a: pid 1, output in /a.log",
        "    b: pid 2, output in /b.log",
    ]
    assert not [text for text in made.said if "broken" in text], "nobody expects that link to hold"


def test_with_detach_and_no_agent_that_runs_nothing_is_started() -> None:
    made = Launching("a", "1", detach=True)
    made.there("a")
    made.hears("a", AgentRefused("no memory"))
    assert made.code == 2
    assert made.said[-1] == "rallypoint: agents run on 0 hosts, and --nodes needs 1"


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_with_detach_agents_that_run_on_count_whenever_another_host_fails(order: str) -> None:
    made = Launching("a,b,c", "2:3", detach=True)
    made.there("a", "b", "c")
    for name in order:
        refuses = name == "b"
        made.hears(name, AgentRefused("no memory") if refuses else Started(7, f"/{name}.log"))
    assert not made.delivered, "no agent that runs on would hear of it"
    assert not [text for text in made.said if "ending the job" in text]
    assert "    a: pid 7, output in /a.log" in made.said
    assert "    c: pid 7, output in /c.log" in made.said
    assert made.code == 0


@pytest.mark.parametrize("order", list(permutations("abc")))
@pytest.mark.parametrize(("is_mistake", "code"), [(True, 2), (False, 75)])
def test_with_detach_too_few_agents_are_no_success_and_a_person_reads_how_to_end_them(
    order: str, *, is_mistake: bool, code: int
) -> None:
    made = Launching("a,b,c", "3", detach=True)
    made.there("a", "b", "c")
    for name in order:
        if name != "b":
            made.hears(name, Started(7, f"/{name}.log"))
        elif is_mistake:
            made.hears("b", AgentRefused("no memory"))
        else:
            made.loses("b")
            assert f"b: the link is broken ({GONE}): its agent may run on" in made.said
    assert not made.delivered
    assert [text for text in made.said if text.startswith("    cancel it: ")]
    assert made.said[-1] == (
        "rallypoint: agents run on 2 hosts, and --nodes needs 3: they wait for others until "
        "join_timeout"
    )
    assert made.code == code


def test_after_a_bug_of_the_launch_only_signals_have_an_effect() -> None:
    made = running("2", "a,b")
    launch.abandon(made.state)
    assert made.step(launch.LinkEnded("a", GONE)) == []
    assert made.tick() == []
    for number in (SIGINT, SIGTERM, SIGINT):
        made.signal(number)
    assert made.is_hurried
    assert made.end is None, "the bug has ended it already"


def test_a_host_whose_agent_was_not_started_can_not_say_that_it_runs() -> None:
    made = Launching("a,b", "1:2", detach=True)
    made.hears("a", Started(7, "/a.log"))
    made.there("a", "b")
    assert list(made.starts) == ["a", "b"]
    assert made.end is None


NAMES = "a,b,c,d"
MESSAGES: dict[str, FromHost] = {
    "here": HERE,
    "older": Here("0.1"),
    "hello": Hello("10.0.0.1", 20000),
    "near": Hello("127.0.0.1", 20000),
    "refuses": AgentRefused("it lacks something"),
    "runs": Started(7, "/log"),
    "succeeds": ended(0, "succeeded"),
    "fails": ended(1, "failed"),
    "preempted": ended(143, "preempted"),
    "killed": ended(-9),
    "usage": ended(2),
}
HOST_DEEDS = (*MESSAGES, "there", "there", "there", "lost", "lost by mistake")
DEEDS = st.one_of(
    st.tuples(st.sampled_from(HOST_DEEDS), st.sampled_from(NAMES.split(","))),
    st.tuples(st.sampled_from(["tick", "late", "int", "term"]), st.just("")),
)


def do(made: Launching, deed: str, name: str) -> None:
    match deed:
        case "there":
            made.there(name)
        case "lost":
            made.loses(name)
        case "lost by mistake":
            made.loses(name, is_mistake=True)
        case "tick":
            made.tick()
        case "late":
            made.tick(launch.REACH_S)
        case "int" | "term":
            made.signal(SIGINT if deed == "int" else SIGTERM)
        case _:
            made.hears(name, MESSAGES[deed])


def end_of(made: Launching) -> None:
    """Have all links end, and say what must be so."""
    started = set(made.starts)
    for name in made.names:
        if made.end is None:
            made.loses(name)
    assert made.end is not None, "every launch ends with its last host"
    assert not started or set(made.starts) == started, "all agents are started at once, or none"
    caught, code = made.caught, made.end.code
    if made.starts:
        assert len(made.starts) >= made.least
        assert len(made.leaders) == 1
        most = min(made.state.asked.plan.most, len(made.starts))
        assert {f"--nnodes={made.least}:{most}"} == {
            word for told in made.starts.values() for word in told.argv if "nnodes" in word
        }
    else:
        assert code == 128 + caught[0] if caught else code in (2, 75)
        assert "nothing was started" in made.said[-1]
    if code == 0:
        succeeded = [each for each in made.state.said.values() if each.outcome == "succeeded"]
        assert succeeded or made.state.asked.detach
    if made.starts and made.state.asked.detach:
        assert (code == 0) == (len(made.state.started) >= made.least)
    for name in made.names:
        named = [text for text in made.said if text.startswith(f"{name}: ")]
        assert len(named) <= 1, "a person reads once why a host is gone"
    assert len([text for text in made.said if "ending the job" in text]) <= 1


@settings(max_examples=examples(3000), deadline=None, database=None, print_blob=True)
@given(
    st.sampled_from(["1:4", "2:4", "2", "4"]),
    st.booleans(),
    st.sampled_from([(), ("a", "b"), ("a", "b", "c", "d")]),
    st.lists(DEEDS, max_size=40),
)
def test_every_launch_ends_once_whatever_its_hosts_say_and_whenever_they_are_lost(
    nodes: str, detach: bool, there: tuple[str, ...], deeds: list[tuple[str, str]]
) -> None:
    """No agent is started twice, none is told anything after its link ended, and the exit code is
    one that follows from what was said."""
    made = Launching(NAMES, nodes, detach=detach)
    made.there(*there)
    for deed, name in deeds:
        do(made, deed, name)
    end_of(made)


EXCHANGE = (
    *(("here", "a"), ("here", "b"), ("hello", "b"), ("hello", "a"), ("there", "c"), ("there", "d")),
    *(("runs", "a"), ("tick", ""), ("runs", "b"), ("runs", "c"), ("runs", "d"), ("tick", "")),
    *(("succeeds", "b"), ("succeeds", "a"), ("succeeds", "d"), ("succeeds", "c")),
)


@pytest.mark.parametrize("order", list(permutations(NAMES.split(","), 2)))
def test_two_losses_at_any_messages_leave_a_job_of_two_to_four_hosts_alone(
    order: tuple[str, str],
) -> None:
    for first in range(len(EXCHANGE) + 1):
        for second in range(first, len(EXCHANGE) + 1):
            made = Launching(NAMES, "2:4")
            for at, (deed, name) in enumerate((*EXCHANGE, ("tick", ""))):
                for when, lost in zip((first, second), order, strict=True):
                    if when == at:
                        made.loses(lost)
                do(made, deed, name)
            end_of(made)
            assert made.code == 0
            assert not made.delivered


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 130), (SIGTERM, 143)])
def test_a_signal_at_any_message_reaches_each_agent_that_runs(
    number: signal.Signals, code: int
) -> None:
    for at in range(len(EXCHANGE)):
        made = Launching(NAMES, "4")
        for deed, name in EXCHANGE[:at]:
            do(made, deed, name)
        runs = made.state.those(HostPart.RUNS)
        made.signal(number)
        assert made.delivered == [(name, number) for name in runs]
        for name in runs:
            made.hears(name, ended(code, "cancelled" if number == SIGINT else "preempted"))
        ended_before = any(each.outcome == "succeeded" for each in made.state.said.values())
        assert made.code == (0 if ended_before else code)
