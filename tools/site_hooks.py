"""Hooks of MkDocs: the pages of the site that lie outside of docs/, and the API reference.

`make docs` builds the site with `--strict`, so that a link which leads nowhere fails the build, and
so does a public name without a docstring.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("mkdocs.plugins.site_hooks")

OUTSIDE = {
    "README.md": "index.md",
    "docs/README.md": "by-task.md",
    "docs/design/README.md": "design/index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""The pages that have another place on the site than in the repository."""
REFERENCE = {
    "worker": ("The API for scripts that Rallypoint runs. Imports the standard library only.",),
    "elastic": ("The names of `torch.distributed.elastic`, path by path.",),
    "testing": ("Tools for authors of rendezvous backends.",),
}
"""The public packages, each with the first sentence of its page."""
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def public_modules(package: str) -> list[str]:
    """Return the names of a package's public modules that define or export something."""
    top = ROOT / "src" / "rallypoint" / package
    names = []
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            names.append(".".join(parts))
    return names


def target_of(source: Path, link: str) -> str | None:
    """Return the place on the site, from its top, that a link of a page in the repository means.

    None: the link leads to a file that is no page, as to source.
    """
    path = (source.parent / link).resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
        LOG.warning("%s: the link %r leads nowhere", source.relative_to(ROOT), link)
        return None
    name = path.relative_to(ROOT).as_posix()
    if name in OUTSIDE:
        return OUTSIDE[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return None


def with_links_of_site(text: str, source: Path, place: str) -> str:
    """Rewrite the links of a page of the repository to places on the site.

    A link to source becomes its text.
    """

    def replaced(found: re.Match[str]) -> str:
        target = target_of(source, found[1])
        if target is None:
            return f"](https://example.invalid/{found[1]})"
        up = "../" * place.count("/")
        return f"]({up}{target}{found[2] or ''})"

    text = LINK.sub(replaced, text)
    return re.sub(r"\[([^\]]+)\]\(https://example\.invalid/[^)]*\)", r"\1", text)


def reference_page(package: str) -> str:
    """Return the page of a public package, which names its modules for mkdocstrings."""
    (about,) = REFERENCE[package]
    modules = public_modules(package)
    parts = [f"# rallypoint.{package}\n\n{about}\n"]
    parts += [f"::: {name}\n" for name in modules]
    return "\n".join(parts)


def on_config(config: Any) -> Any:
    """Have llms.txt list the pages of the navigation. MkDocs calls this first."""
    config.plugins["llmstxt"].config.sections = {
        title: [
            {page if isinstance(page, str) else next(iter(page.values())): ""} for page in pages
        ]
        for section in config.nav
        for title, pages in section.items()
    }
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/ and the reference. MkDocs calls this once a build."""
    from mkdocs.structure.files import File  # Only where the site is built.

    for source, place in OUTSIDE.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(
            File.generated(config, place, content=with_links_of_site(text, ROOT / source, place))
        )
    for package in REFERENCE:
        page = f"reference/{package}.md"
        files.append(File.generated(config, page, content=reference_page(package)))
    complain_about_undocumented()
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page of docs/ that lead out of it; called by MkDocs for each page."""
    place = page.file.src_uri
    if place in OUTSIDE.values() or place.startswith("reference/"):
        return markdown
    return with_links_of_site(markdown, ROOT / "docs" / place, place)


def complain_about_undocumented() -> None:
    """Warn of each public name of the public packages that has no docstring."""
    for name in undocumented():
        LOG.warning("%s has no docstring", name)


def undocumented() -> list[str]:
    """Return the public classes and functions of the public packages without a docstring."""
    import ast

    found = []
    for package in REFERENCE:
        for path in sorted((ROOT / "src" / "rallypoint" / package).rglob("*.py")):
            if any(part.startswith("_") and part != "__init__.py" for part in path.parts):
                continue
            tree = ast.parse(path.read_text("utf-8"))
            found += [
                f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                for node in tree.body
                if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                and not node.name.startswith("_")
                and ast.get_docstring(node) is None
            ]
    return found
