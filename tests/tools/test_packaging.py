"""What a package index, a release and the tools around the repository read."""

from __future__ import annotations

import re
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from tools.wheel_job import lacks

import rallypoint

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]+\]\((?!https?://)[^)]*\)")
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def index_readme(text: str) -> str:
    for pattern, replacement in project()["tool"]["hatch"]["metadata"]["hooks"]["custom"][
        "substitutions"
    ]:
        text = re.sub(pattern, replacement, text)
    return text


def test_the_readme_of_an_index_has_no_link_that_leads_nowhere() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert LINK.search(readme) is not None
    text = index_readme(readme)
    assert LINK.search(text) is None
    linked = set(re.findall(r"\]\(((?!https?://)[^)#]+)\)", readme))
    assert all(f"`{path}`" in text and (ROOT / path).is_file() for path in linked)


def test_each_kind_of_link_becomes_text() -> None:
    assert index_readme("see [Five](#five)") == "see Five"
    assert index_readme("[a/b.md](a/b.md): c") == "`a/b.md`: c"
    assert index_readme("x ([timers](docs/t.md))") == "x (`docs/t.md`)"
    assert index_readme("the [worker API](w.md) is") == "the worker API (`w.md`) is"
    assert index_readme("[k](https://k.com/x)") == "[k](https://k.com/x)"


def test_the_version_is_written_in_one_place() -> None:
    found = project()
    assert "version" in found["project"]["dynamic"]
    assert "version" not in found["project"]
    place = found["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{rallypoint.__version__}"' in (ROOT / place).read_text()


def test_the_wheel_has_the_files_of_the_package_that_are_no_modules() -> None:
    # `make wheel` builds one and looks into it; hatch takes all that git does not ignore.
    build = project()["tool"]["hatch"]["build"]
    assert build == {"targets": {"wheel": {"packages": ["src/rallypoint"]}}}
    package = ROOT / "src" / "rallypoint"
    data = [file for file in package.rglob("*.*") if not file.suffix.startswith(".py")]
    assert {"slurm.sh", "spec.yaml", "rbac.yaml"} <= {file.name for file in data}
    ignoring = ["git", "check-ignore", "--no-index", *map(str, data)]
    ignored = subprocess.run(ignoring, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""


def test_a_wheel_without_a_template_is_found(tmp_path: Path) -> None:
    package, wheel = ROOT / "src" / "rallypoint", tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in package.rglob("*.*"):
            if file.name != "slurm.sh":
                archive.writestr(file.relative_to(ROOT / "src").as_posix(), b"")
    assert lacks(wheel) == ["rallypoint/cli/generate/templates/slurm.sh"]


def test_the_changelog_has_the_usual_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    form = re.compile(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d")
    assert versions
    assert all(form.fullmatch(version) for version in versions)
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= SECTIONS
    assert rallypoint.__version__ in text


def test_pre_commit_runs_what_make_runs_and_downloads_nothing() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", text) == ["local"]
    assert re.findall(r"entry: (.*)", text) == ["make lint", "make types"]
    assert set(re.findall(r"language: (.*)", text)) == {"system"}
