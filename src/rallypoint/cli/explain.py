"""`rallypoint run --explain`: the policy in force in words, and where each value comes from.

Where a value comes from is what its `Given` says: a flag, a variable of the environment, or what
a scheduler says. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from rallypoint.agent.environ import tracked_run_id
from rallypoint.cli.parser import Scanned, entry
from rallypoint.config import AgentConfig, RendezvousConfig, StopConfig
from rallypoint.core.settings import OnJoin
from rallypoint.core.task_variables import inherited
from rallypoint.core.text import count, shown
from rallypoint.process.relay.pattern import PROFILES

_BY_DEFAULT = "default"
_COLUMN = 20
_LATE = {
    OnJoin.RESTART: "the workers restart with them, once no further node has joined for {settle}",
    OnJoin.HOLD: "wait for the next restart",
    OnJoin.AT_CHECKPOINT: "the workers are asked for a checkpoint, and restart with them after it",
}


class _Row(Struct, frozen=True):
    topic: str
    text: str
    said_by: Sequence[str]
    """The options, and the keys of --rdzv-conf, that can set the value."""


def explain(config: AgentConfig, scanned: Scanned, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the explanation: the command, and each part of the policy with its source.

    `scanned`: the options that `config` was read from, with what a scheduler's environment adds.
    `environ`: the environment that workers inherit.
    """
    yield f"rallypoint run would start: {' '.join(config.workers.argv)}"
    for row in (*_rows(config), *_environment(config, environ)):
        origin = _origin(row.said_by, scanned)
        yield from entry(f"{row.text} [{origin}]", f"  {row.topic}", column=_COLUMN)
    for notice in config.notices:
        yield f"note: {notice}"


def _origin(names: Sequence[str], scanned: Scanned) -> str:
    found = (given.origin for name in names if (given := scanned.get(name)) is not None)
    return ", ".join(dict.fromkeys(found)) or _BY_DEFAULT


def _rows(config: AgentConfig) -> Iterator[_Row]:
    job = config.rendezvous
    is_alone = job.max_nodes == 1 and not (job.register or job.handler or job.endpoint.port)
    yield _Row("job", job.run_id, ["--rdzv-id"])
    nodes = "this one alone" if is_alone else _nodes(job)
    yield _Row("nodes", nodes, ["--nnodes", "--standalone", "last_call_timeout"])
    if job.world_multiple_of > 1:
        text = f"a multiple of {job.world_multiple_of}; surplus nodes stand by"
        yield _Row("workers in all", text, ["--world-multiple-of"])
    workers = count(config.workers.count, "worker")
    yield _Row(
        "this node", f"{_name(job)}, {workers}", ["--node-id", "--machine-id", "--nproc-per-node"]
    )
    if not is_alone:
        yield _Row("rendezvous", *_meeting(job))
        yield _Row("ranks", *_ranks(job))
    progress = _progress(config.output.progress_pattern)
    yield _Row("progress", progress, ["--progress-pattern"])
    if trackers := config.workers.export_run_id:
        text = f"all rounds are run {tracked_run_id(job.run_id)} of {', '.join(trackers)}"
        yield _Row("experiment", text, ["--export-run-id"])
    yield from _failures(job)
    if job.max_runtime_s:
        text = f"{_seconds(job.max_runtime_s)} after the first workers started, with a checkpoint"
        yield _Row("the job ends", text, ["--max-runtime"])
    if not is_alone:
        yield from _losses(job)
    yield from _stopping(config.stop)
    if (path := config.observe.history) is not None:
        where = f"a file in {path} with the job's name" if path.endswith("/") else path
        text = f"the node that hosts the job appends its events to {where}"
        yield _Row("history", text, ["--history"])
    if not is_alone and job.handler is None:
        yield _Row("token", _token(config), ["--token-file", "--token-fd", "--insecure"])


def _nodes(job: RendezvousConfig) -> str:
    if job.min_nodes == job.max_nodes:
        return f"{job.min_nodes} work; any more stand by"
    least, most, last_call = job.min_nodes, job.max_nodes, _seconds(job.last_call_s)
    start = f"the first round waits for {most}, or {last_call} once there are {least}"
    return f"{least} to {most} work, and any more stand by; {start}"


def _name(job: RendezvousConfig) -> str:
    return job.node_id or "named after its host"


def _meeting(job: RendezvousConfig) -> tuple[str, list[str]]:
    said_by = ["--rdzv-backend", "--rdzv-endpoint", "--node-rank", "--master-addr", "is_host"]
    if job.handler is not None:
        return f"by the backend {job.handler.backend} at {job.handler.endpoint}", said_by
    if (register := job.register) is not None:
        from rallypoint.register.engines import make_for

        where = make_for(job).where
        text = f"any node leads the job, and another takes over from it; its record is in {where}"
        return f"{text}; a leader may act {_seconds(register.hold_s)} without it", said_by
    if job.endpoint.port == 0:
        return "none", said_by
    host = {
        None: "the node that can bind it hosts the job, which ends if that node is lost",
        True: "this node hosts the job, which ends if this node is lost",
        False: "another node, or rallypoint serve, hosts the job",
    }[job.is_host]
    return f"at {job.endpoint}: {host}", said_by


def _ranks(job: RendezvousConfig) -> tuple[str, list[str]]:
    if job.node_rank is not None:
        return f"fixed: this is node {job.node_rank}", ["--node-rank"]
    key = f"by topology (here {job.topology}), then " if job.topology else ""
    stay = "nodes that stay keep their rank, and a replacement takes that of a lost node"
    return f"{key}by the node's name, n2 before n10; {stay}", ["--topology"]


def _failures(job: RendezvousConfig) -> Iterator[_Row]:
    said_by = ["--max-restarts", "--restart-window", "--restart-backoff", "--no-restart-on"]
    said_by.append("--max-no-progress")
    yield _Row("a worker fails", _restarts(job), said_by)
    hang = "not detected"
    if job.hang_timeout_s:
        hang = f"it has failed after {_seconds(job.hang_timeout_s)} without progress"
        hang += "".join(f", {phase}: {_seconds(limit_s)}" for phase, limit_s in job.hang_phases)
    yield _Row("a worker hangs", hang, ["--hang-timeout"])


def _progress(pattern: str) -> str:
    by_call = "reported by rallypoint.worker.progress"
    if not pattern:
        return by_call
    how = f"as {pattern} prints it" if pattern in PROFILES else f"by {shown(pattern)}"
    return f"read in the workers' output, which passes the relay, {how}; or {by_call}"


def _losses(job: RendezvousConfig) -> Iterator[_Row]:
    lost = f"noticed after {_seconds(job.lease_s)} of silence at most; costs no restart"
    yield _Row("a node is lost", lost, ["--lease", "keep_alive_interval", "keep_alive_max_attempt"])
    often = f"in {job.max_node_losses_per_hour} rounds per hour; one more ends the job"
    yield _Row("... again", often, ["--max-node-losses"])
    if job.handler is not None:
        return
    few = f"fewer than {job.min_nodes}: the job ends after {_seconds(job.join_timeout_s)}"
    yield _Row("too few nodes", few, ["join_timeout", "timeout"])
    if job.max_nodes > 1:
        late = _LATE[job.on_join].format(settle=_seconds(job.join_settle_s))
        said_by = ["--on-join", "--join-settle", "--min-growth-interval"]
        yield _Row("a late node", late, said_by)


def _restarts(job: RendezvousConfig) -> str:
    if not job.max_restarts:
        return "the job fails"
    length = f" in {_seconds(job.restart_window_s)}" if job.restart_window_s else ""
    text = f"all workers restart, {count(job.max_restarts, 'time')}{length}; then the job fails"
    if job.max_no_progress:
        text += f", or after {job.max_no_progress} equal failures in a row without progress"
        text += " (failures that are not charged, as on a machine that is held back, do not count)"
    if job.restart_backoff_s:
        text += f"; before the first restart {_seconds(job.restart_backoff_s)} pass"
    if job.no_restart_exit_codes:
        text += f"; at once if it ends with {', '.join(map(str, job.no_restart_exit_codes))}"
    return text


def _stopping(stop: StopConfig) -> Iterator[_Row]:
    grace = f"{_seconds(stop.shutdown_grace_s)} from SIGTERM to SIGKILL when the job ends"
    text = f"{grace}, {_seconds(stop.restart_grace_s)} when it restarts"
    if stop.signal_scope == "worker":
        text += "; child processes of a worker get the signal when the worker has ended"
    said_by = ["--shutdown-timeout", "--restart-grace", "--signal-scope"]
    yield _Row("workers stop", text, said_by)
    by = f"asked by {', '.join(stop.signals)}"
    if stop.preempt_notice:
        by += f" or {stop.preempt_notice}"
    if stop.leave_in_s is not None:
        by += f", or in {_seconds(round(stop.leave_in_s))}"
    text = f"{by}: a checkpoint, and then this node stops, in {_seconds(stop.drain_deadline)}"
    said_by = ["--signals-to-handle", "--preempt-notice", "--stop-at", "--stop-before"]
    said_by += ["--drain-deadline", "--shutdown-timeout"]
    yield _Row("this node leaves", text, said_by)


def _environment(config: AgentConfig, environ: Mapping[str, str]) -> Iterator[_Row]:
    if styles := config.rendezvous.env_styles:
        text = f"workers also have the variables of {', '.join(styles)}"
        yield _Row("variables", text, ["--env-style"])
    if left_out := sorted(environ.keys() - inherited(environ, config.workers.keep_env)):
        text = f"workers do not get variables of this agent's task: {', '.join(left_out)}"
        yield _Row("environment", text, ["--keep-env"])


def _token(config: AgentConfig) -> str:
    access = config.access
    if access.insecure:
        return "none: every host that reaches the port may take part"
    if access.token_text is not None:
        return "RALLYPOINT_TOKEN"
    if access.token_fd is not None:
        return f"from descriptor {access.token_fd}"
    return access.token_file or "~/.config/rallypoint/token"


def _seconds(number: float) -> str:
    return f"{number:g} s"
