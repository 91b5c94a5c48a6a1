"""A launcher that a scheduler stops asks which signal it was."""

import os
import signal
import threading
import time

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

config = LaunchConfig(1, 1, 1, run_id="mine", rdzv_backend="c10d", rdzv_endpoint="localhost:0")


def stop():
    while not os.path.exists("started"):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=stop, daemon=True).start()
try:
    elastic_launch(config, "sh")("-c", "touch started; exec sleep 100")
except SignalException as error:
    print("stopped by", signal.Signals(error.sigval).name)
