"""Transcripts of a launch: which hosts are reached, what they are told, and what a person reads
(`cli/launch/machine.py`).

They are written as those of `scenario.py`. The first command is `launch`:

    launch hosts=NAME,... nodes=MIN[:MAX] [detach=1]
    there NAME [address=A] [version=V]  the host answers, and has what is needed
    lacks NAME WORD...                  it answers, and lacks this; or its agent can't be started
    runs NAME                           its agent has been started
    ends NAME code=N [outcome=O]        its agent has ended, and has left a summary or not
    lost NAME [mistake=1]               its ssh client has ended
    signal NAME                         this command gets a signal
    tick S                              so many seconds pass

In a trace `NAME <-` is what a host is told, `*` what a person reads, and `exit` the end of the
command. Messages that only say that this side is there have no line.
"""

from __future__ import annotations

import json
import signal

from tests.harness.scenario import options_and_names

from rallypoint import __version__
from rallypoint.cli.launch import machine as launch
from rallypoint.cli.launch.plan import Asked, Plan, Remote
from rallypoint.core.text import signal_name
from rallypoint.integrations.hostfile import Host
from rallypoint.wire.launch_link import (
    AgentEnded,
    AgentRefused,
    Beat,
    Deliver,
    Hello,
    Here,
    Start,
    Started,
)


def asked_for(names: str, nodes: str, *, detach: bool = False) -> Asked:
    """What a person asks for who launches a job on these hosts, with so many nodes."""
    least, _, most = nodes.partition(":")
    remote = Remote(("ssh",), "python3", "/work", {})
    hosts = tuple(Host(f"{name}.example", name=name) for name in names.split(","))
    plan = Plan(
        *(hosts, int(least), int(most or least), remote, "digits", (), ""),
        workers=True,
        picks_endpoint=True,
        words=("train.py",),
        script="train.py",
        output="prefix",
    )
    return Asked(plan, "secret", "", detach)


def ended(code: int, outcome: str = "") -> AgentEnded:
    """The end of an agent, with a summary if there is an outcome."""
    said = {"outcome": outcome, "exit_code": max(code, 0), "reason": "", "node": "", "schema": 1}
    return AgentEnded(code, json.dumps(said).encode() if outcome else b"")


class LaunchScenario:
    """One launch. `run` executes one command and returns its trace."""

    def __init__(self) -> None:
        self._state: launch.Launch | None = None
        self._now = 0.0
        self._trace: list[str] = []

    def run(self, command: str) -> list[str]:
        """Execute one command. Raises ValueError for one that is unknown or malformed."""
        name, *words = command.split()
        options, names = options_and_names(words)
        self._trace = []
        match name, names:
            case "launch", []:
                asked = asked_for(
                    options["hosts"], options["nodes"], detach=options.get("detach") == "1"
                )
                self._state = launch.begin(asked, self._now)
                self._step(launch.TimePassed())
            case "there", [host]:
                version = options.get("version", __version__)
                self._step(launch.Heard(host, Here(version)))
                self._step(
                    launch.Heard(host, Hello(options.get("address", f"{host}-address"), 20000))
                )
            case "lacks", [host, *why]:
                self._step(launch.Heard(host, AgentRefused(" ".join(why))))
            case "runs", [host]:
                self._step(launch.Heard(host, Started(7, f"/logs/{host}.log")))
            case "ends", [host]:
                end = ended(int(options["code"]), options.get("outcome", ""))
                self._step(launch.Heard(host, end))
            case "lost", [host]:
                is_mistake = options.get("mistake") == "1"
                self._step(launch.LinkEnded(host, "ssh exited with 255", is_mistake))
            case "signal", [number]:
                self._step(launch.Signalled(signal.Signals[number].value))
            case "tick", [seconds]:
                for _ in range(int(float(seconds) / launch.BEAT_S)):
                    self._now += launch.BEAT_S
                    self._step(launch.TimePassed())
            case _:
                raise ValueError(f"not a command: {command!r}")
        return self._trace

    def _step(self, event: launch.Event) -> None:
        if self._state is None:
            raise ValueError("the first command must be `launch hosts=... nodes=...`")
        for effect in launch.step(self._state, event, self._now):
            self._trace += _lines(effect)


def _lines(effect: launch.Effect) -> list[str]:
    match effect:
        case launch.Reach(name):
            return [f"{name} <- ssh"]
        case launch.Send(name, Start(argv)):
            return [f"{name} <- run {' '.join(argv)}"]
        case launch.Send(name, Deliver(number)):
            return [f"{name} <- {signal_name(number)}"]
        case launch.Send(name, message):
            return [] if isinstance(message, Beat) else [f"{name} <- {message}"]
        case launch.HangUp(name):
            return [f"{name} <- nothing more"]
        case launch.Kill(name):
            return [f"{name} <- ssh is killed"]
        case launch.Say(text):
            return [f"* {text}"]
        case launch.Print(lines):
            return [f"* {line}" for line in lines]
        case launch.EndOutput(name):
            return [f"* the rest of what {name} has written"]
        case launch.ShowLast(names, as_one_host):
            whose = names[0] if as_one_host else f"one of {', '.join(names)}"
            return [f"* the last lines of {whose}"]
        case launch.Hurry():
            return ["the output is not waited for"]
        case launch.Over(code, patience_s):
            return [f"exit {code}, after {patience_s:g} s at most"]
