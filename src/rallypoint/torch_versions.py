"""The features of torch's launcher: the torch version of each, and its effect here.

A flag, or a key of `--rdzv-conf`, that some torch version knows is accepted. If it has no effect
here, a notice says so with the reason in this table. A name that neither this table nor a setting
has is an error. `python tools/torch_versions_page.py` makes `docs/torch-versions.md` from the
table. Pure data.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec import Struct

VERSIONS = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
"""The torch versions that the table covers; a feature that is older has the first one."""
COMPARED = "2.13"
"""The version whose torchrun the tests compare with by default."""


class Known(Struct, frozen=True):
    """One feature of torch's launcher."""

    since: str
    """The torch version that introduced it, one of VERSIONS; the first one for an older feature."""
    kind: Literal["flag", "key", "variable", "name", "behaviour"]
    name: str
    """The name of the flag, key, variable or Python object; for a behaviour, a description."""
    here: str = "the same"
    """The effect in Rallypoint, or the reason why there is none."""
    effect: bool = True
    takes_value: bool = True
    """Whether a flag that is not among Rallypoint's settings takes a value."""

    @property
    def why(self) -> str:
        """The text of `here`, for a line on a console."""
        return self.here.replace("`", "")


_flag = partial(Known, kind="flag")
_key = partial(Known, kind="key")
_variable = partial(Known, kind="variable")
_name = partial(Known, kind="name")
_behaviour = partial(Known, kind="behaviour")

_SEE = "see [every flag](from-torchrun.md#every-flag)"
_ETCD = "it is for `--rdzv-backend etcd`, which takes it"
_OLD_FLAGS = (
    *("--nnodes", "--nproc-per-node", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
    *("--rdzv-conf", "--standalone", "--max-restarts", "--start-method", "--role", "--module"),
    *("--no-python", "--run-path", "--log-dir", "--redirects", "--tee", "--local-ranks-filter"),
    *("--node-rank", "--master-addr", "--master-port", "--local-addr", "--logs-specs"),
)
_OLD_KEYS = ("join_timeout", "timeout", "last_call_timeout", "is_host")
_OLD_ETCD_KEYS = (
    *("protocol", "ssl_cert", "ssl_cert_key", "ca_cert"),
    *("cert", "key", "cacert", "etcd_prefix"),
)
_OLD_VARIABLES = (
    *("PYTHON_EXEC", "LOGLEVEL", "OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE"),
    *("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_TIMER_FILE"),
)

# fmt: off
KNOWN: tuple[Known, ...] = (
    *(_flag("2.6", name=name, here=_SEE) for name in _OLD_FLAGS),
    _flag("2.6", name="--monitor-interval", here="exits are noticed at once", effect=False),
    _flag("2.6", name="--use-env", effect=False, takes_value=False,
          here="of torch.distributed.launch; workers are always told by their environment"),
    *(_key("2.6", name=name) for name in _OLD_KEYS),
    _key("2.6", name="store_type",
         here="the same; with `file` the record of the job is a directory beside the path"),
    _key("2.6", name="rank", effect=False,
         here="only fixed ranks need it: `--node-rank`, or the static backend of the library"),
    _key("2.6", name="close_timeout", effect=False,
         here="a node may take `--restart-grace` and `--stop-patience` to stop its workers"),
    _key("2.6", name="read_timeout", effect=False,
         here="a lost connection is noticed by the lease"),
    *(_key("2.6", name=name, here=_ETCD, effect=False) for name in _OLD_ETCD_KEYS),
    *(_variable("2.6", name=name) for name in _OLD_VARIABLES),
    _variable("2.6", name="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
              here="the same; `--log-line-prefix-template` wins"),
    _variable("2.6", name="TORCHELASTIC_HEALTH_CHECK_PORT",
              here="the agent answers `GET /health` there, which torch's public build does not"),
    _variable("2.6", name="TORCHELASTIC_ETCD_BINARY_PATH", effect=False,
              here="the launcher starts no etcd; `EtcdServer` reads it"),
    _variable("2.6", name="TORCH_ELASTIC_WORKER_IDENTICAL", effect=False,
              here="the coordinator gives the ranks; nodes exchange nothing that it could spare"),
    _variable("2.6", name="TORCH_DISABLE_SHARE_RDZV_TCP_STORE", effect=False,
              here="each round has a new store, which listens before any worker starts"),
    _variable("2.6", name="TORCH_WORKER_SERVER_SOCKET", effect=False,
              here="it is read by torch's own `worker_main` in the worker, which gets it as it is"),
    _variable("2.6", name="USE_LIBUV", here="it is read by torch's store; ours has one loop",
              effect=False),
    _key("2.7", name="keep_alive_interval", here="times keep_alive_max_attempt: the lease"),
    _key("2.7", name="keep_alive_max_attempt", here="times keep_alive_interval: the lease"),
    _key("2.7", name="heartbeat_timeout", effect=False,
         here="a heartbeat waits for nothing: the lease alone decides"),
    _flag("2.8", name="--event-log-handler", here="the same, and `jsonl:FILE`"),
    _flag("2.9", name="--numa-binding",
          here="the same modes, without numactl and without a GPU too"),
    _flag("2.10", name="--duplicate-stdout-filters"),
    _flag("2.10", name="--duplicate-stderr-filters"),
    _flag("2.10", name="--signals-to-handle", here="the same; an unknown signal name is refused"),
    _flag("2.10", name="--virtual-local-rank"),
    _name("2.10", name="torch.distributed.debug",
          here="the same: it runs in the workers, under any launcher"),
    _variable("2.10", name="CUDA_VISIBLE_DEVICES", here="the same, under `--virtual-local-rank`"),
    _variable("2.10", name="TORCHELASTIC_SIGNALS_TO_HANDLE",
              here="the same: for an agent that a program makes; the flag and `LaunchConfig` win"),
    _flag("2.12", name="--shutdown-timeout", here="honoured wherever a job stops; 25 s, not 30"),
    _variable("2.12", name="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"),
    _name("2.13", name="elastic_launch(health_check_server=), launch_agent(health_check_server=)",
          here="the agent answers by itself where its port is given", effect=False),
    _variable("2.13", name="TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", effect=False,
              here="`--hang-timeout` ends a round whose workers stop making progress, in any state,"
                   " and says what they wait for in the kernel"),
    _behaviour("2.13", name="a health check server starts before the rendezvous, and serves through"
               " the exit barrier", here="the agent answers from when it has found the coordinator"
               " until it ends"),
    _flag("2.14", name="--log-line-prefix-template"),
    _flag("2.14", name="--print-completion",
          here="the same, for fish too, and without the package `shtab`"),
    _behaviour("2.14", name="`${hostname}` in a template of prefixes, the variable's too"),
    _behaviour("2.14", name="`--numa-binding` asks `torch.accelerator` for the devices",
               here="NVIDIA's library is asked, without torch"),
    _behaviour("2.14", name="`init_method=\"tcp://...\"` at another address than the agent's store"
               " has rank 0 host a store there; up to 2.13 all ranks wait 30 minutes for one",
               here="a worker's torch decides: see [init-method](init-method.md)"),
    _name("2.14", name="ErrorHandler.maybe_enrich_signal_failure_message",
          here="the same name and parameters; what it returns is logged"),
    _variable("2.15", name="HIP_VISIBLE_DEVICES",
              here="the same: under `--virtual-local-rank` it wins over CUDA_VISIBLE_DEVICES"),
    _flag("2.15", name="--exit-barrier-timeout", effect=False,
          here="a node that has succeeded waits until the others have ended: no time ends that"),
    _key("2.15", name="cas_backoff_max_seconds", effect=False,
         here="only the coordinator writes the state, so no write fails because of another node"),
    _name("2.15", name="ErrorHandler.set_entrypoint_fn_name, ErrorHandler.record_success"),
    _behaviour("2.15", name="a free port is probed on the wildcard address",
               here="no port is probed: the store's socket is bound before its port is told"),
)
# fmt: on


def without_effect(kind: str, name: str) -> Known | None:
    """Return the row of a flag or key that is accepted without effect.

    None if there is no such row.
    """
    found = (row for row in KNOWN if row.kind == kind and row.name == name and not row.effect)
    return next(found, None)


def is_later(version: str, than: str) -> bool:
    """Return whether the first of two of VERSIONS came after the second."""
    return VERSIONS.index(version) > VERSIONS.index(than)
