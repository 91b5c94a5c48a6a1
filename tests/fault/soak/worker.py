"""The worker of a soak: a program, which `rallypoint run` starts.

    worker.py FOLDER [AFTER_S EVERY]

Writes a file of its own to FOLDER/workers: a line of JSON when it starts, another one when it has
met all ranks of its round. The time of the file is changed every 50 ms while the worker lives, so
it tells when even a killed worker was last seen. The worker ends well when FOLDER/end is there.

With AFTER_S the worker fails so many seconds after its start and meets nobody; with EVERY only the
first, the (EVERY + 1)-th and so on of those that its node starts do so.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

TICK_S = 0.05
FAILURE = 3
"""The exit code of a worker that fails."""


def main() -> None:
    folder, *failing = sys.argv[1:]
    place = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")}
    place["round"] = int(os.environ["RALLYPOINT_ROUND"])
    place["incarnation"] = int(os.environ["RALLYPOINT_INCARNATION"])
    node, pid = os.environ["RALLYPOINT_NODE_ID"], os.getpid()
    record = os.path.join(folder, "workers", f"{place['round']}-{place['RANK']}-{node}-{pid}")
    lines = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(**more: object) -> None:
        os.write(lines, (json.dumps(more) + "\n").encode())

    def tick() -> None:
        while True:
            os.utime(lines)
            time.sleep(TICK_S)

    tell(**place, node=node, pid=pid, began_at=time.time())
    threading.Thread(target=tick, daemon=True).start()
    if failing and _is_due(folder, node, int(failing[1])):
        time.sleep(float(failing[0]))
        os._exit(int(failing[2]) if len(failing) > 2 else FAILURE)

    from rallypoint import worker

    worker.barrier("all are here")
    tell(met_at=time.time())
    step, has_saved = 0, False
    end = os.path.join(folder, "end")
    fail = os.path.join(folder, f"fail-{place['round']}-{place['RANK']}")
    while not os.path.exists(end):
        step += 1
        worker.progress(step)
        is_wanted = worker.should_restart_at_checkpoint() or worker.checkpoint_requested()
        if is_wanted and not has_saved:
            worker.checkpoint_saved(step)
        has_saved = is_wanted
        if os.path.exists(fail):
            os._exit(FAILURE)
        time.sleep(TICK_S)


def _is_due(folder: str, node: str, every: int) -> bool:
    """Whether this one of the workers of its node is to fail."""
    counter = os.path.join(folder, f"started-{node}")
    with open(counter, "ab") as file:
        file.write(b".")
        file.flush()
        return (os.path.getsize(counter) - 1) % every == 0


main()
