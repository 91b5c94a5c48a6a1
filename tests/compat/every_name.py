"""Imports every public name, for mypy: written by torch_names.py."""

from __future__ import annotations


def elastic_agent_server() -> None:
    from rallypoint.elastic.agent.server import ElasticAgent, RunResult, SimpleElasticAgent, TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE, Worker, WorkerGroup, WorkerSpec, WorkerState
    print(ElasticAgent, RunResult, SimpleElasticAgent, TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE, Worker, WorkerGroup, WorkerSpec, WorkerState)


def elastic_agent_server_api() -> None:
    from rallypoint.elastic.agent.server.api import DEFAULT_ROLE, ElasticAgent, RunResult, SimpleElasticAgent, Worker, WorkerGroup, WorkerSpec, WorkerState
    print(DEFAULT_ROLE, ElasticAgent, RunResult, SimpleElasticAgent, Worker, WorkerGroup, WorkerSpec, WorkerState)


def elastic_agent_server_health_check_server() -> None:
    from rallypoint.elastic.agent.server.health_check_server import HealthCheckServer, create_healthcheck_server
    print(HealthCheckServer, create_healthcheck_server)


def elastic_agent_server_local_elastic_agent() -> None:
    from rallypoint.elastic.agent.server.local_elastic_agent import LocalElasticAgent, TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_HEALTH_CHECK_PORT, TORCHELASTIC_TIMER_FILE, TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT
    print(LocalElasticAgent, TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_HEALTH_CHECK_PORT, TORCHELASTIC_TIMER_FILE, TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT)


def elastic_control_plane() -> None:
    from rallypoint.elastic.control_plane import TORCH_WORKER_SERVER_SOCKET, worker_main
    print(TORCH_WORKER_SERVER_SOCKET, worker_main)


def elastic_events() -> None:
    from rallypoint.elastic.events import Event, EventMetadataValue, EventSource, NodeState, RdzvEvent, construct_and_record_rdzv_event, get_logging_handler, record, record_rdzv_event
    print(Event, EventMetadataValue, EventSource, NodeState, RdzvEvent, construct_and_record_rdzv_event, get_logging_handler, record, record_rdzv_event)


def elastic_events_api() -> None:
    from rallypoint.elastic.events.api import Event, EventMetadataValue, EventSource, NodeState, RdzvEvent
    print(Event, EventMetadataValue, EventSource, NodeState, RdzvEvent)


def elastic_events_handlers() -> None:
    from rallypoint.elastic.events.handlers import get_logging_handler
    print(get_logging_handler)


def elastic_metrics() -> None:
    from rallypoint.elastic.metrics import ConsoleMetricHandler, MetricData, MetricHandler, MetricsConfig, NullMetricHandler, configure, getStream, get_elapsed_time_ms, initialize_metrics, prof, profile, publish_metric, put_metric
    print(ConsoleMetricHandler, MetricData, MetricHandler, MetricsConfig, NullMetricHandler, configure, getStream, get_elapsed_time_ms, initialize_metrics, prof, profile, publish_metric, put_metric)


def elastic_metrics_api() -> None:
    from rallypoint.elastic.metrics.api import ConsoleMetricHandler, MetricData, MetricHandler, MetricStream, MetricsConfig, NullMetricHandler, configure, getStream, get_elapsed_time_ms, prof, profile, publish_metric, put_metric
    print(ConsoleMetricHandler, MetricData, MetricHandler, MetricStream, MetricsConfig, NullMetricHandler, configure, getStream, get_elapsed_time_ms, prof, profile, publish_metric, put_metric)


def elastic_multiprocessing() -> None:
    from rallypoint.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, MultiprocessContext, PContext, ProcessFailure, RunProcsResult, SignalException, Std, SubprocessContext, start_processes, to_map
    print(DefaultLogsSpecs, LogsDest, LogsSpecs, MultiprocessContext, PContext, ProcessFailure, RunProcsResult, SignalException, Std, SubprocessContext, start_processes, to_map)


def elastic_multiprocessing_api() -> None:
    from rallypoint.elastic.multiprocessing.api import DefaultLogsSpecs, IS_MACOS, IS_WINDOWS, LogsDest, LogsSpecs, MultiprocessContext, PContext, RunProcsResult, SignalException, Std, SubprocessContext, get_std_cm, to_map
    print(DefaultLogsSpecs, IS_MACOS, IS_WINDOWS, LogsDest, LogsSpecs, MultiprocessContext, PContext, RunProcsResult, SignalException, Std, SubprocessContext, get_std_cm, to_map)


def elastic_multiprocessing_errors() -> None:
    from rallypoint.elastic.multiprocessing.errors import ChildFailedError, ErrorHandler, GlobalRank, JSON, ProcessFailure, get_error_handler, record
    print(ChildFailedError, ErrorHandler, GlobalRank, JSON, ProcessFailure, get_error_handler, record)


def elastic_multiprocessing_errors_error_handler() -> None:
    from rallypoint.elastic.multiprocessing.errors.error_handler import ErrorHandler
    print(ErrorHandler)


def elastic_multiprocessing_errors_handlers() -> None:
    from rallypoint.elastic.multiprocessing.errors.handlers import get_error_handler
    print(get_error_handler)


def elastic_multiprocessing_redirects() -> None:
    from rallypoint.elastic.multiprocessing.redirects import IS_MACOS, IS_WINDOWS, get_libc, libc, redirect, redirect_stderr, redirect_stdout
    print(IS_MACOS, IS_WINDOWS, get_libc, libc, redirect, redirect_stderr, redirect_stdout)


def elastic_multiprocessing_subprocess_handler() -> None:
    from rallypoint.elastic.multiprocessing.subprocess_handler import SubprocessHandler, get_subprocess_handler
    print(SubprocessHandler, get_subprocess_handler)


def elastic_multiprocessing_subprocess_handler_handlers() -> None:
    from rallypoint.elastic.multiprocessing.subprocess_handler.handlers import get_subprocess_handler
    print(get_subprocess_handler)


def elastic_multiprocessing_subprocess_handler_subprocess_handler() -> None:
    from rallypoint.elastic.multiprocessing.subprocess_handler.subprocess_handler import IS_WINDOWS, SubprocessHandler
    print(IS_WINDOWS, SubprocessHandler)


def elastic_multiprocessing_tail_log() -> None:
    from rallypoint.elastic.multiprocessing.tail_log import TailLog, tail_logfile
    print(TailLog, tail_logfile)


def elastic_rendezvous() -> None:
    from rallypoint.elastic.rendezvous import RendezvousClosedError, RendezvousConnectionError, RendezvousError, RendezvousGracefulExitError, RendezvousHandler, RendezvousHandlerCreator, RendezvousHandlerRegistry, RendezvousInfo, RendezvousParameters, RendezvousStateError, RendezvousStoreInfo, RendezvousTimeoutError, rendezvous_handler_registry
    print(RendezvousClosedError, RendezvousConnectionError, RendezvousError, RendezvousGracefulExitError, RendezvousHandler, RendezvousHandlerCreator, RendezvousHandlerRegistry, RendezvousInfo, RendezvousParameters, RendezvousStateError, RendezvousStoreInfo, RendezvousTimeoutError, rendezvous_handler_registry)


def elastic_rendezvous_api() -> None:
    from rallypoint.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError, RendezvousError, RendezvousGracefulExitError, RendezvousHandler, RendezvousHandlerCreator, RendezvousHandlerRegistry, RendezvousInfo, RendezvousParameters, RendezvousStateError, RendezvousStoreInfo, RendezvousTimeoutError, rendezvous_handler_registry
    print(RendezvousClosedError, RendezvousConnectionError, RendezvousError, RendezvousGracefulExitError, RendezvousHandler, RendezvousHandlerCreator, RendezvousHandlerRegistry, RendezvousInfo, RendezvousParameters, RendezvousStateError, RendezvousStoreInfo, RendezvousTimeoutError, rendezvous_handler_registry)


def elastic_rendezvous_c10d_rendezvous_backend() -> None:
    from rallypoint.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend, DEFAULT_PORT, create_backend
    print(C10dRendezvousBackend, DEFAULT_PORT, create_backend)


def elastic_rendezvous_dynamic_rendezvous() -> None:
    from rallypoint.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend, RendezvousSettings, RendezvousTimeout, Token, create_handler, get_method_name
    print(DynamicRendezvousHandler, RendezvousBackend, RendezvousSettings, RendezvousTimeout, Token, create_handler, get_method_name)


def elastic_rendezvous_etcd_rendezvous() -> None:
    from rallypoint.elastic.rendezvous.etcd_rendezvous import create_rdzv_handler
    print(create_rdzv_handler)


def elastic_rendezvous_etcd_rendezvous_backend() -> None:
    from rallypoint.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend, create_backend
    print(EtcdRendezvousBackend, create_backend)


def elastic_rendezvous_etcd_server() -> None:
    from rallypoint.elastic.rendezvous.etcd_server import EtcdServer, find_free_port, stop_etcd
    print(EtcdServer, find_free_port, stop_etcd)


def elastic_rendezvous_etcd_store() -> None:
    from rallypoint.elastic.rendezvous.etcd_store import EtcdStore, cas_delay
    print(EtcdStore, cas_delay)


def elastic_rendezvous_registry() -> None:
    from rallypoint.elastic.rendezvous.registry import get_rendezvous_handler
    print(get_rendezvous_handler)


def elastic_rendezvous_static_tcp_rendezvous() -> None:
    from rallypoint.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous, create_rdzv_handler
    print(StaticTCPRendezvous, create_rdzv_handler)


def elastic_rendezvous_utils() -> None:
    from rallypoint.elastic.rendezvous.utils import parse_rendezvous_endpoint
    print(parse_rendezvous_endpoint)


def elastic_timer() -> None:
    from rallypoint.elastic.timer import FileTimerClient, FileTimerRequest, FileTimerServer, LocalTimerClient, LocalTimerServer, TimerClient, TimerRequest, TimerServer, configure, expires
    print(FileTimerClient, FileTimerRequest, FileTimerServer, LocalTimerClient, LocalTimerServer, TimerClient, TimerRequest, TimerServer, configure, expires)


def elastic_timer_api() -> None:
    from rallypoint.elastic.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer, configure, expires
    print(RequestQueue, TimerClient, TimerRequest, TimerServer, configure, expires)


def elastic_timer_debug_info_logging() -> None:
    from rallypoint.elastic.timer.debug_info_logging import log_debug_info_for_expired_timers
    print(log_debug_info_for_expired_timers)


def elastic_timer_file_based_local_timer() -> None:
    from rallypoint.elastic.timer.file_based_local_timer import FileTimerClient, FileTimerRequest, FileTimerServer
    print(FileTimerClient, FileTimerRequest, FileTimerServer)


def elastic_timer_local_timer() -> None:
    from rallypoint.elastic.timer.local_timer import LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue
    print(LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue)


def elastic_utils() -> None:
    from rallypoint.elastic.utils import get_env_variable_or_raise, get_socket_with_port, macros
    print(get_env_variable_or_raise, get_socket_with_port, macros)


def elastic_utils_api() -> None:
    from rallypoint.elastic.utils.api import get_env_variable_or_raise, get_socket_with_port, macros
    print(get_env_variable_or_raise, get_socket_with_port, macros)


def elastic_utils_data() -> None:
    from rallypoint.elastic.utils.data import CyclingIterator, ElasticDistributedSampler
    print(CyclingIterator, ElasticDistributedSampler)


def elastic_utils_data_cycling_iterator() -> None:
    from rallypoint.elastic.utils.data.cycling_iterator import CyclingIterator
    print(CyclingIterator)


def elastic_utils_data_elastic_distributed_sampler() -> None:
    from rallypoint.elastic.utils.data.elastic_distributed_sampler import ElasticDistributedSampler, T
    print(ElasticDistributedSampler, T)


def elastic_utils_distributed() -> None:
    from rallypoint.elastic.utils.distributed import create_c10d_store, get_free_port, get_socket_with_port
    print(create_c10d_store, get_free_port, get_socket_with_port)


def elastic_utils_log_level() -> None:
    from rallypoint.elastic.utils.log_level import get_log_level
    print(get_log_level)


def elastic_utils_logging() -> None:
    from rallypoint.elastic.utils.logging import get_logger
    print(get_logger)


def elastic_utils_process_state() -> None:
    from rallypoint.elastic.utils.process_state import is_uninterruptible_state, read_proc_state
    print(is_uninterruptible_state, read_proc_state)


def elastic_utils_store() -> None:
    from rallypoint.elastic.utils.store import DistStoreError, barrier, get_all, store_timeout, synchronize
    print(DistStoreError, barrier, get_all, store_timeout, synchronize)


def launch() -> None:
    from rallypoint.elastic.launch import launch, main, parse_args
    print(launch, main, parse_args)


def launcher() -> None:
    from rallypoint.elastic.launcher import LaunchConfig, elastic_launch, launch_agent
    print(LaunchConfig, elastic_launch, launch_agent)


def launcher_api() -> None:
    from rallypoint.elastic.launcher.api import LaunchConfig, elastic_launch, launch_agent
    print(LaunchConfig, elastic_launch, launch_agent)


def run() -> None:
    from rallypoint.elastic.run import config_from_args, determine_local_world_size, get_args_parser, get_rdzv_endpoint, get_use_env, main, parse_args, parse_min_max_nnodes, run, run_script_path
    print(config_from_args, determine_local_world_size, get_args_parser, get_rdzv_endpoint, get_use_env, main, parse_args, parse_min_max_nnodes, run, run_script_path)
