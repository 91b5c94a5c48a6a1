"""One MLflow run for all rounds of a job (`--export-run-id mlflow`).

MLflow's server creates run ids, and MLFLOW_RUN_ID of a run that does not exist is an error, so a
launcher can't choose one. The first round starts a run with a tag that names the job, and later
rounds, on whichever machine, find the run by that tag.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from rallypoint.agent.environ import MLFLOW_RUN_VARIABLE

TAG = "rallypoint_run"


def start_run(**arguments: Any) -> Any:
    """Start or resume the MLflow run of this job, and return what `mlflow.start_run` returns.

    The first round creates the run, and later rounds resume it. Call this function on one rank,
    with the arguments of `mlflow.start_run`. Loggers that use the active run, as `mlflow.autolog`
    and the Trainer's callback do, log to it.

    Without `--export-run-id mlflow`, outside of a job, or with `run_id` given, the call is the same
    as `mlflow.start_run`. Asks the tracking server, and raises what MLflow raises.
    """
    mlflow, job = import_module("mlflow"), os.environ.get(MLFLOW_RUN_VARIABLE, "")
    if not job or arguments.get("run_id"):
        return mlflow.start_run(**arguments)
    where = {"experiment_ids": [arguments["experiment_id"]]} if "experiment_id" in arguments else {}
    query = f"tags.`{TAG}` = '{job}'"
    found = mlflow.search_runs(
        filter_string=query,
        max_results=1,
        order_by=["start_time ASC"],
        output_format="list",
        **where,
    )
    if found:
        return mlflow.start_run(**arguments | {"run_id": found[0].info.run_id})
    tags = {**(arguments.get("tags") or {}), TAG: job}
    return mlflow.start_run(**{"run_name": job} | arguments | {"tags": tags})
