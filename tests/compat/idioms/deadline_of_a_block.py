"""A worker limits how long a block may take: a server of timers ends it when it takes longer."""

import multiprocessing
import time

import torch.distributed.elastic.timer as timer


def work(queue, seconds):
    timer.configure(timer.LocalTimerClient(queue))
    with timer.expires(after=60):
        pass
    with timer.expires(after=seconds):
        time.sleep(100 if seconds < 1 else 0)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    server = timer.LocalTimerServer(queue, max_interval=0.1)
    server.start()
    workers = [context.Process(target=work, args=(queue, seconds)) for seconds in (60, 0.1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    server.stop()
    print("exit codes", [worker.exitcode for worker in workers])
