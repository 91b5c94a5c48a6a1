"""A launcher over ssh starts the processes of a host itself and polls them, as torchrunx does."""

import os
import tempfile

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes


def entry(name):
    print("hello from", name, flush=True)
    return os.environ["RANK"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        context = start_processes(
            name="mine",
            entrypoint=entry,
            args={0: ("a",), 1: ("b",)},
            envs={0: {"RANK": "4"}, 1: {"RANK": "5"}},
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.ALL),
            start_method="spawn",
        )
        try:
            while (result := context.wait(timeout=0.1, period=0.01)) is None:
                assert set(context.pids()) == {0, 1}
        finally:
            context.close()
        print("failed", result.is_failed(), "returned", sorted(result.return_values.items()))
        for rank, path in sorted(result.stdouts.items()):
            with open(path) as file:
                print(rank, file.read().strip())


if __name__ == "__main__":
    main()
