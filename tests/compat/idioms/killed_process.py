"""A launcher looks how a process of its own ended."""

import tempfile

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

with tempfile.TemporaryDirectory() as folder:
    context = start_processes(
        name="mine",
        entrypoint="sh",
        args={0: ("-c", "kill -9 $$"), 1: ("-c", "sleep 100")},
        envs={0: {}, 1: {}},
        logs_specs=DefaultLogsSpecs(log_dir=folder),
    )
    result = context.wait(timeout=60)
    failure = result.failures[0]
    print("failed", failure.exitcode, failure.signal_name())
