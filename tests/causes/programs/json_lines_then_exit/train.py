import logging
import os
import sys
import warnings
from pythonjsonlogger.json import JsonFormatter

handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(JsonFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
logging.basicConfig(level=logging.INFO, handlers=[handler])
log = logging.getLogger("trainer")

class OutOfMemoryError(RuntimeError):
    pass

for step in range(40):
    if step == 11:
        try:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity)")
        except OutOfMemoryError:
            log.warning("halving the batch size", exc_info=True, extra={"step": step, "batch": 16})
    if step == 20:
        try:
            raise ConnectionError("503 Service Unavailable from tracker")
        except ConnectionError:
            log.error("tracker: will retry", exc_info=True, extra={"step": step})
    if step % 10 == 0:
        log.info("progress", extra={"step": step, "loss": 2.0 / (step + 1)})
warnings.warn("evaluation error bars are wide: 3 samples")
log.info("validation metrics written", extra={"step": 40, "errors": 0})
sys.stdout.flush()
os._exit(3)
