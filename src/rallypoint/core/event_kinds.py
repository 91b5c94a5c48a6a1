"""The table of event kinds: every event that Rallypoint reports, its level, and its words. Pure.

Console, log, event handlers, the coordinator's records, docs and tests read it. A new kind is a row
here and the place that reports it: `kinds.NODE_LOST(node=ref, why=reason)` is its record.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from msgspec import Struct

from rallypoint.core.text import named


class Level(IntEnum):
    """The importance of an event; the numbers are those of `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40
    CRITICAL = 50


class ReportedBy(Enum):
    """The processes that report an event of a kind, and where it is seen."""

    NODE = "each node"
    HOST = "the node that hosts the coordinator"
    HOST_TO_HANDLERS = "the node that hosts the coordinator, to event handlers only"
    CONSOLE = "each node, on its console or in its log only"
    COMMAND = "`rallypoint serve` or `rallypoint store`"


class Detail(Enum):
    """The cases in which a node shows an event at level DEBUG, as other lines say the same."""

    NEVER = "never"
    ALONE = "in a job of one node"
    ALWAYS = "always"


class EventKind(Struct, frozen=True, eq=False):
    """One row of the table of events.

    Rows may share a name, if programs need one name for events that people see differently. `words`
    is the sentence for people: `{}` is the text that the reporter composes, other fields are
    inserted by name. `quiet`: the event is shown under `--quiet`, so it must not occur in a
    success.
    """

    name: str
    about: str
    words: str = "{}"
    level: Level = Level.WARNING
    quiet: bool = True
    reported_by: ReportedBy = ReportedBy.NODE
    detail: Detail = Detail.NEVER

    @property
    def is_wrong(self) -> bool:
        """Whether the event reports a fault that neither a person nor a plan wanted."""
        is_said_elsewhere = self.reported_by is ReportedBy.HOST_TO_HANDLERS
        return self.level >= Level.WARNING and (self.quiet or is_said_elsewhere)

    def __call__(self, text: str = "", /, *, node_id: str = "", **fields: object) -> Record:
        """Return the record of one event of this kind.

        `node_id` is the node that the event concerns.
        """
        return Record(self, self.words.format(text, named=named, **fields), node_id)


class Record(Struct, frozen=True):
    """One event that has happened: its kind, its text for people, and the node that it concerns."""

    kind: EventKind
    text: str
    node_id: str = ""

    @property
    def name(self) -> str:
        """The name of the event for programs."""
        return self.kind.name


def _routine(
    name: str,
    about: str,
    words: str = "{}",
    *,
    by: ReportedBy = ReportedBy.NODE,
    detail: Detail = Detail.NEVER,
) -> EventKind:
    """Return a row for an event of normal operation: level INFO, and `--quiet` hides it."""
    return EventKind(name, about, words, Level.INFO, False, by, detail)


def _hosted(name: str, about: str, words: str = "{}", *, quiet: bool = True) -> EventKind:
    """Return a row for an event that only the coordinator's node knows and reports."""
    return EventKind(name, about, words, quiet=quiet, reported_by=ReportedBy.HOST)


def _for_handlers(
    name: str, about: str, words: str = "{}", level: Level = Level.WARNING
) -> EventKind:
    """Return a row for an event that the coordinator's node passes to event handlers only.

    Nodes print other words about it.
    """
    by = ReportedBy.HOST_TO_HANDLERS
    return EventKind(name, about, words, level, quiet=False, reported_by=by)


def _command(name: str, about: str, words: str = "{}", level: Level = Level.WARNING) -> EventKind:
    return EventKind(name, about, words, level, False, ReportedBy.COMMAND)


# A round on this node.

PHASE = EventKind(
    "phase",
    "a phase of a round ended: `phase`, `duration_ms`",
    "{phase} took {took_s:.3f} s",
    Level.DEBUG,
    quiet=False,
)
ROUND_JOINED = _routine("round_joined", "this node was assigned to a round", detail=Detail.ALONE)
WORKERS_STARTED = _routine(
    "workers_started",
    "all workers of this node run: `took_s`",
    "started {workers}",
    detail=Detail.ALWAYS,
)
ROUND_ENDED = EventKind(
    "round_ended", "a round ended before its workers were done", "round {round} ended: {why}"
)
ROUND_CHANGED = EventKind(
    "round_ended",
    "a round ended because nodes leave or join",
    "round {round} ended: {why}",
    quiet=False,
)
WORKERS_STOPPED = _routine(
    "workers_stopped",
    "the workers of a round that ended have stopped on this node",
    "the workers of round {round} have stopped",
    detail=Detail.ALWAYS,
)
SUCCEEDED = _routine(
    "succeeded",
    "all workers of this node succeeded",
    "all workers of this node exited with code 0",
    detail=Detail.ALONE,
)

# The way into a job.

MEETING = _routine("meeting", "this node looks for the coordinator")
LOOK = _routine(
    "look",
    "the command that shows the state of a job of several nodes; by its host or leader",
    "look at this job: {command}",
)
HOSTS = _routine(
    "hosts",
    "this node hosts the coordinator",
    "this node hosts the coordinator at {endpoint}, and the job ends with this node. With"
    " {named.rdzv_backend} file {named.rdzv_endpoint} DIR, a directory that all nodes share, the "
    "job outlives it",
)
LEADS = _routine("leads", "this node leads the job", "this node leads the job at {places}")
METRICS = _routine("metrics", "metrics are served", "metrics are served at {url}")
NOTICE = EventKind("notice", "an option has an effect that is easily overlooked", quiet=False)
WAITING = _routine(
    "waiting",
    "a node without a round waits for something else",
    "waiting for {what}",
    by=ReportedBy.CONSOLE,
    detail=Detail.ALWAYS,
)
WAIT = EventKind(
    "wait",
    "a wait has lasted a while",
    "waiting for {what}",
    quiet=False,
    reported_by=ReportedBy.CONSOLE,
)

# What the coordinator saw and decided.

ROUND_FORMED = _for_handlers("round_formed", "a round has its nodes", level=Level.INFO)
NODE_JOINED = EventKind(
    "node_joined",
    "a node joined the job",
    "node {node} joined{how}",
    Level.INFO,
    quiet=False,
    reported_by=ReportedBy.HOST,
)
NODE_LOST = _for_handlers(
    "node_lost", "a node was lost, which ended the round", "node {node} was lost: {why}"
)
OTHER_NODE_LOST = _hosted(
    "other_node_lost",
    "a node was lost, which ended no round",
    "node {node} was lost: {why}",
)
NODE_DRAINING = _hosted(
    "node_draining",
    "a node was asked to leave",
    "node {node} is leaving: {why}",
    quiet=False,
)
NODE_EXPELLED = _hosted("node_expelled", "a node was expelled", "node {node} was expelled: {why}")
NODE_HELD_BACK = _hosted("node_held_back", "a machine is held back, or is trusted again")
NODE_UNFIT = _hosted(
    "node_unfit",
    "a late node can't start workers, and leaves",
    "node {node} leaves, since its machine can't start workers: {why}",
)
NODE_REFUSED = _hosted("node_refused", "a node may not take part", "refused {peer}: {why}")
ASKED = EventKind(
    "asked",
    "`rallypoint logs`, `stacks`, `drain`, `checkpoint`, `restart`, `cancel`, `nodes exclude` or "
    "`nodes allow` was used, by which host and version; at most once a minute each",
    "somebody at {host} used rallypoint {command} (version {version}){left_out}",
    Level.INFO,
    quiet=False,
    reported_by=ReportedBy.HOST,
)
RESTART = _hosted("restart", "the workers are started again after a failure")
PATIENCE = _hosted("patience", "many nodes are late at once: no node is given up yet")
TAKEN_OVER = _hosted("taken_over", "a coordinator continues a job of another one")
DEPOSED = _hosted("deposed", "this coordinator no longer leads the job", "no longer leads: {why}")
WAITS_TO_LEAD = _hosted("waits_to_lead", "the register of a job can't be claimed yet")
NOT_RECORDED = _hosted(
    "not_recorded",
    "the register of a job can't be written",
    "nothing could be recorded for {seconds} s ({why}): decisions of this job wait, and its "
    "workers are stopped if this lasts too long",
)
RECORDED_AGAIN = _hosted(
    "recorded_again",
    "the register of a job can be written again",
    "decisions of this job are recorded again",
)
HISTORY_NOT_WRITTEN = _hosted(
    "history_not_written",
    "the file of `--history` can't be written",
    "{named.history} {path}: can't be written: {why}; what happens meanwhile is missing there",
)
NOT_KEPT = _routine(
    "not_kept",
    "the record of the job for `rallypoint status` after its end can't be written",
    "nothing of this job is kept in {path}: {why}",
    detail=Detail.ALWAYS,
)
VERDICT = _for_handlers(
    "verdict",
    "the job ended, because it was done or cancelled",
    "job {outcome}: {why}",
    Level.INFO,
)
JOB_FAILED = _for_handlers(
    "verdict", "the job ended for another reason", "job {outcome}: {why}", Level.ERROR
)
CHECKPOINT = _hosted(
    "checkpoint", "a checkpoint is asked for, or was saved, before nodes leave or join", quiet=False
)
CHECKPOINT_MISSED = _hosted(
    "checkpoint", "nodes leave or join although not all workers have saved a checkpoint"
)
HANG_SUSPECTED = _hosted("hang_suspected", "workers make no progress")
CONNECTION_CLOSED = _hosted(
    "connection_closed",
    "unauthenticated connections were closed: each address and reason once, the rest counted each "
    "minute",
)
OPEN_FILES = _hosted("open_files", "connections wait: the process has no descriptor left")
FAULT = _hosted(
    "fault",
    "an unexpected error that did not end this agent; once for each place in the code, with a "
    "total at the end; please report it",
)

# The connection to the coordinator.

SESSION_SUSPENDED = EventKind(
    "session_suspended",
    "the connection to the coordinator broke",
    "the connection to the coordinator broke ({why}){meanwhile}",
)
SESSION_RESUMED = EventKind(
    "session_resumed", "the connection is back", "the coordinator is back{how}", Level.INFO
)
SESSION_ANEW = EventKind("session_anew", "a new session with the coordinator began")
FENCED = EventKind("fenced", "the lease expired: this node must not run workers")
EXPELLED = EventKind(
    "expelled",
    "the coordinator expelled this node",
    "this node was expelled from the job: {why}",
)
TELLING = EventKind("telling", "this node waits for the coordinator to acknowledge that it leaves")
OTHERS_LEAVING = EventKind(
    "telling",
    "the job has ended, and its host waits for the other nodes to leave",
    "the job has ended, and this node, which hosts it, waits for {nodes} to leave, {left_s:.0f} s "
    "more at most; Ctrl-C ends the wait",
    quiet=False,
)

# Leaving, and how workers are stopped.

LEAVING = EventKind("leaving", "a notice or `rallypoint drain` asked this node to leave")
SIGNAL = EventKind("signal", "this agent got a signal")
KILLING = EventKind("killing", "workers did not stop in time", "{}: killing them")
STUCK = EventKind(
    "stuck",
    "processes outlive SIGKILL",
    "these processes survived SIGKILL: {pids}{then}",
)
CHECKPOINT_WANTED = _routine("checkpoint_wanted", "the workers of this node save a checkpoint")
CHECKPOINT_SAVED = _routine(
    "checkpoint_saved",
    "the workers of this node have saved a checkpoint",
    "the workers of this node have saved a checkpoint",
)
PREEMPT_NOTICE = EventKind("notice", "the command of `--preempt-notice` can't be run")

# The workers' surroundings.

SPAWN_FAILED = EventKind("spawn_failed", "a worker could not be started")
STORE_UNREACHED = EventKind(
    "store_unreached",
    "a node that waits for a place does not reach the workers' store: the round continues",
    "the current round continues without this node: {why}",
)
PREPARED = EventKind("prepared", "the process that workers are forked from was lost, or warns")
PREPARING = EventKind(
    "prepared",
    "the process that workers are forked from takes long to import",
    "still importing {modules}: the workers start after that",
    quiet=False,
)
STACKS = EventKind("stacks", "where the stacks of workers that make no progress are kept")
PROGRESS_NOT_POSTED = EventKind(
    "progress_not_posted", "Kubeflow Trainer did not take the progress of the job", quiet=False
)
TIMER_EXPIRED = EventKind("timer_expired", "a worker is late for its own deadline")
STDIN = EventKind(
    "stdin",
    "several workers read the terminal",
    "several workers seem to wait for input from this terminal, and only one gets the line that "
    "you type: have one rank alone ask",
    quiet=False,
)
PATTERN_OFF = EventKind(
    "pattern_off",
    "`--progress-pattern` takes too long",
    "{named.progress_pattern} {pattern} takes more than 10 ms for one line, and is switched off: "
    "no more progress is read from the output; the line: {line}",
)
PATTERN_UNMATCHED = _hosted(
    "pattern_unmatched",
    "`--progress-pattern` has matched nothing for two minutes, on no node",
    "no line of any worker has matched {named.progress_pattern} {}",
)
LOG_STORAGE = EventKind(
    "log_storage", "a log file, or the memory shared with workers, can't be written"
)
LOG_STORAGE_THERE = _for_handlers(
    "log_storage", "a node can't write log files of its workers", "node {node}: {}"
)
LOGS_KEPT = EventKind(
    "logs_kept",
    "where the workers' output of a failed job stays: `path`",
    "the workers' output is kept in {path}",
)
GUARD_REPLACED = EventKind(
    "guard_replaced",
    "the guard process was killed",
    "the guard process was killed: started another",
)
RELAY_REPLACED = EventKind(
    "relay_replaced",
    "the process that relays the workers' output was killed",
    "the relay of the workers' output was killed: {then}",
)

# Commands that serve.

SERVING = _command(
    "serving", "a coordinator for many jobs listens", "serving on {places} ({secret})", Level.INFO
)
SERVE_SIGNAL = _command("signal", "`rallypoint serve` ends", "got {signal}: stopped serving")
STORE_LISTENING = _command("store_listening", "a store listens", level=Level.INFO)
STORE_STATS = _command(
    "store_stats",
    "the contents of a store, for `--stats`",
    "{connections} connections, {keys} keys, {bytes} bytes, {waiting} waiting, {per_second:.0f} "
    "operations/s",
    Level.INFO,
)
STORE_REFUSED = _command("store_refused", "a store refused a client, or had an unexpected error")
STORE_SIGNAL = _command("signal", "`rallypoint store` ends", "got {signal}: the store was closed")


def _rows() -> tuple[EventKind, ...]:
    return tuple(row for row in globals().values() if isinstance(row, EventKind))


KINDS = _rows()
"""All kinds of events, in the order of this file."""
