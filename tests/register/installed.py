"""A package of docs/registers.md in a folder of its own, with the process of its server."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.page import blocks

SERVER = Path(__file__).with_name("shelf_server.py")
PROJECT, ROW, STORE, CONTRACT = blocks("registers.md")[1:5]
"""The files of the package as the page prints them, and its test."""


class Environment:
    """Packages that an installer has put into a folder of their own, beside what the tests have."""

    def __init__(self, packages: Path) -> None:
        """Make the folder."""
        packages.mkdir()
        self.packages = packages
        self.variables = {"PYTHONPATH": str(packages)}
        """The environment variables of programs that find the packages."""

    def install(self, project: str, files: dict[str, str]) -> None:
        """What an installer does with a wheel: the files, and what they are."""
        said = tomllib.loads(project)["project"]
        name = re.sub(r"[-_.]+", "_", said["name"])
        info = self.packages / f"{name}-{said['version']}.dist-info"
        points = "".join(
            f"[{group}]\n" + "".join(f"{point} = {value}\n" for point, value in given.items())
            for group, given in said["entry-points"].items()
        )
        whole = f"Metadata-Version: 2.1\nName: {said['name']}\nVersion: {said['version']}\n"
        files = files | {f"{info.name}/METADATA": whole, f"{info.name}/entry_points.txt": points}
        for path, text in files.items():
            at = self.packages / path
            at.parent.mkdir(exist_ok=True)
            at.write_text(text)

    def install_shelf(self) -> None:
        """The package of the page."""
        self.install(PROJECT, {"shelf/__init__.py": ROW, "shelf/store.py": STORE})


@contextmanager
def shelf_server() -> Iterator[str]:
    """Yields the address of an empty shelf, which is a process of its own."""
    words = [sys.executable, str(SERVER)]
    silent = subprocess.DEVNULL  # Clients are killed.
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=silent, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()
