"""What a package index, a release and the tools around the repository read."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tools.installed_files import PLACES, text_of
from tools.man_page import man_page
from tools.release import ReleaseError, checksums, notes
from tools.wheel_job import lacks

import rallypoint
from rallypoint.cli.commands import ROWS
from rallypoint.cli.options import RUN
from rallypoint.core.outcomes import CODES

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
    hooks = {"custom": {"path": "tools/wheel_extras.py"}}
    assert build == {"targets": {"wheel": {"packages": ["src/rallypoint"], "hooks": hooks}}}
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
        for place in PLACES.values():
            if "/man/" not in place:
                archive.writestr(f"rallypoint-0.1.0.data/data/{place}", b"")
    assert lacks(wheel) == ["rallypoint/cli/generate/templates/slurm.sh", PLACES["man"]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_by_the_installed_file(shell: str, tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} is installed")
    file = tmp_path / PLACES[shell]
    file.parent.mkdir(parents=True)
    file.write_text(text_of(shell))
    asked = {
        "bash": f"source {file}; COMP_WORDS=(rallypoint generate ''); COMP_CWORD=2;"
        " _rallypoint; echo ${COMPREPLY[@]}",
        "zsh": f"fpath=({file.parent} $fpath); autoload -Uz compinit; compinit -u -D;"
        " compadd() { print -r -- $@ }; words=(rallypoint generate ''); CURRENT=3;"
        " $_comps[rallypoint]",
        "fish": "complete -C 'rallypoint generate '",
    }
    (tmp_path / "rallypoint").write_text("#!/bin/sh\n")
    (tmp_path / "rallypoint").chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_DATA_DIRS": f"{tmp_path / 'share'}:/usr/share",
    }
    plain = {"bash": ["--norc"], "zsh": ["-f"], "fish": []}[shell]
    command = [program, *plain, "-c", asked[shell]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert {"kubernetes", "slurm", "rbac"} <= set(done.stdout.split()), done.stderr


def test_the_notes_of_a_release_are_the_section_of_its_version() -> None:
    changelog = "## [Unreleased]\n\n## [1.2.0] - 2026-01-02\n\n* a\n\n## [1.1.0] - x\n\n* b\n"
    assert notes(changelog, "1.2.0") == "* a\n"
    assert notes(changelog, "1.1.0") == "* b\n"
    for name in ("Unreleased", "1.3.0"):
        with pytest.raises(ReleaseError, match=rf"no section \[{name}\], or an empty one"):
            notes(changelog, name)


def test_sha256sum_checks_the_checksums_of_a_release(tmp_path: Path) -> None:
    files = [tmp_path / "a.whl", tmp_path / "b.tar.gz"]
    for file in files:
        file.write_text(file.name)
    (tmp_path / "SHA256SUMS").write_text(checksums(files))
    command = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    files[1].write_text("another")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "b.tar.gz: FAILED\n"


def test_the_man_page_has_every_command_option_and_exit_code() -> None:
    page = man_page()
    shown = {re.sub(r"\\f.|\\&", "", line).replace("\\-", "-") for line in page.splitlines()}
    assert set(ROWS) <= shown
    flags = {setting.flag for _, rows in RUN.groups for setting in rows}
    assert flags <= {word.strip(",") for line in shown for word in line.split()}
    assert {str(code) for code in CODES.values()} <= shown
    if (man := shutil.which("man")) is not None:
        command = [man, "--warnings", "-l", "-"]
        read = subprocess.run(command, input=page, capture_output=True, text=True, check=True)
        assert read.stderr == ""
        assert "--rdzv-endpoint" in read.stdout


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
