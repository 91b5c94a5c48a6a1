"""A workflow engine hands each worker its task as bytes and takes the result of rank 0, as the
elastic task of Flyte does. A failure in a worker becomes one of the task."""

import os
import pickle

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def task(learning_rate):
    if learning_rate < 0:
        raise ValueError(f"a learning rate of {learning_rate}")
    return {"rank": int(os.environ["RANK"]), "learning_rate": learning_rate}


def in_worker(task_bytes, arguments):
    return pickle.loads(task_bytes)(**arguments)


def main():
    config = LaunchConfig(
        run_id="flyte-task",
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        rdzv_configs={"timeout": 900, "join_timeout": 900},
        max_restarts=0,
        monitor_interval=1,
        start_method="spawn",
    )
    for rate in (0.1, -1):
        try:
            results = elastic_launch(config=config, entrypoint=in_worker)(
                pickle.dumps(task), {"learning_rate": rate}
            )
            print("result", results[0])
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            message = failure.error_file_data["message"]["message"]
            print("failed", message, "|", failure.error_file.endswith("error.json"))


if __name__ == "__main__":
    main()
