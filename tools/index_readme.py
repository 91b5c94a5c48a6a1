"""The README as a package index shows it: a hook of the build.

The links of README.md are relative, which is right in a clone and leads nowhere on an index. The
substitutions in pyproject.toml turn them into names of files, all of which are in the sdist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class IndexReadme(MetadataHookInterface):
    """Gives the project its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of a build. Hatchling calls this once for each build."""
        text = Path(self.root, "README.md").read_text("utf-8")
        for pattern, replacement in self.config["substitutions"]:
            text = re.sub(pattern, replacement, text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
