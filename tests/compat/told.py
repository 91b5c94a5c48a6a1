"""A worker that writes what it was told to `$TOLD_DIR/<rank>.json`, and ends."""

import json
import os
import sys

with open(os.path.join(os.environ["TOLD_DIR"], os.environ["RANK"] + ".json"), "w") as out:
    json.dump({"argv": sys.argv[1:], "path0": sys.path[0], "env": dict(os.environ)}, out)
