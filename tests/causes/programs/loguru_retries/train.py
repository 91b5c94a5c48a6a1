import sys
from loguru import logger

logger.remove()
logger.add(sys.stderr, colorize=True, backtrace=True, diagnose=True)
bad = 0
for shard in range(3):
    path = f"/data/shards/{shard:05d}.bin"
    try:
        with open(path, "rb") as file:
            file.read()
    except OSError:
        logger.exception("could not read shard {}, trying the next one", shard)
        bad += 1
    else:
        break
logger.info("running the clean-up hooks")
sys.exit(f"giving up: {bad} of 3 shards were unreadable under /data/shards")
