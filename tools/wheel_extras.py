"""Puts the man page and the completions of shells into a wheel: a hook of the build."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WheelExtras(BuildHookInterface[Any]):
    """Adds the files to a wheel."""

    @property
    def _folder(self) -> Path:
        return Path(self.directory, ".extras")

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files. Hatchling calls this once for each wheel."""
        if version == "editable":
            return
        sys.path[:0] = [str(Path(self.root, "src")), self.root]
        from tools.installed_files import PLACES, text_of

        self._folder.mkdir(parents=True, exist_ok=True)
        for name, place in PLACES.items():
            (self._folder / name).write_text(text_of(name), "utf-8")
            build_data["shared_data"][str(self._folder / name)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files. Hatchling calls this when the wheel is there."""
        shutil.rmtree(self._folder, ignore_errors=True)
