"""Makes the files of a release in dist/: sdist, wheel, checksums, an SBOM, and the notes.

    python -m tools.release [--dry-run]

A release needs a clean tree, and a section of its version in CHANGELOG.md. A dry run needs neither,
and takes the section "Unreleased" where there is none. Nothing is uploaded, and no tag is made. The
SBOM (CycloneDX, JSON) is that of an environment that has the wheel and what it needs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.wheel_job import build, install

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
UNRELEASED = "Unreleased"


class ReleaseError(Exception):
    """The tree can't be released as it is; one line."""


def version() -> str:
    """Return the version, which stands in one place."""
    place = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["path"]
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / place).read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def notes(changelog: str, name: str) -> str:
    """Return the section of a version. Raises ReleaseError if there is none, or an empty one."""
    sections = re.split(r"^## \[?([^\]\s]+)\]?.*$", changelog, flags=re.MULTILINE)
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    if not (text := texts.get(name, "").strip()):
        raise ReleaseError(f"CHANGELOG.md has no section [{name}], or an empty one")
    return text + "\n"


def checksums(files: Iterable[Path]) -> str:
    """Return the lines of SHA256SUMS, which `sha256sum --check` reads."""
    lines = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files)
    return "".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split()[1]))


def sbom(wheel: Path) -> dict[str, Any]:
    """Return the bill of materials of a wheel and what it needs, in CycloneDX's JSON."""
    with tempfile.TemporaryDirectory() as folder:
        python = install(sys.executable, wheel, Path(folder)).with_name("python")
        # What made the environment is no part of what runs.
        pip = [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools"]
        subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        command += ["--pyproject", str(ROOT / "pyproject.toml"), str(python)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
    bill: dict[str, Any] = json.loads(found.stdout)
    return bill


def check_tree() -> None:
    """Raise ReleaseError if something is not committed."""
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    if status.stdout:
        raise ReleaseError(f"not committed: {status.stdout.splitlines()[0].split()[-1]}")


def release(*, dry_run: bool) -> list[Path]:
    """Make the files. Raises ReleaseError."""
    changelog, name = (ROOT / "CHANGELOG.md").read_text("utf-8"), version()
    if not dry_run:
        check_tree()
    try:
        text = notes(changelog, name)
    except ReleaseError:
        if not dry_run:
            raise
        text = notes(changelog, UNRELEASED)
    wheel = build()
    (DIST / "sbom.cdx.json").write_text(json.dumps(sbom(wheel), indent=1) + "\n")
    (DIST / "RELEASE_NOTES.md").write_text(text)
    files = sorted(file for file in DIST.iterdir() if file.is_file())
    (DIST / "SHA256SUMS").write_text(checksums(files))
    return [*files, DIST / "SHA256SUMS"]


def main() -> int:
    """Return the command."""
    parser = argparse.ArgumentParser(description="make the files of a release in dist/")
    parser.add_argument("--dry-run", action="store_true", help="of a tree that is not ready, too")
    try:
        for file in release(dry_run=parser.parse_args().dry_run):
            print(f"{file.stat().st_size:>10,}  {file.relative_to(ROOT)}")
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
