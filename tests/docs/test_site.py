"""The site of the documentation, as far as it is known without MkDocs; `make docs` builds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

from tools import site_hooks  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


class _Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
    """Reads MkDocs' own tags as nothing."""


_Loader.add_multi_constructor("", lambda loader, suffix, node: None)


def navigation() -> list[str]:
    config: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), _Loader)
    pages = [page for section in config["nav"] for pages in section.values() for page in pages]
    return [page if isinstance(page, str) else next(iter(page.values())) for page in pages]


def test_the_navigation_has_each_page_once() -> None:
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    pages -= {"README.md", "design/README.md"}
    pages |= set(site_hooks.OUTSIDE.values())
    pages |= {f"reference/{package}.md" for package in site_hooks.REFERENCE}
    assert sorted(navigation()) == sorted(pages)


def test_a_link_out_of_docs_leads_to_a_page_of_the_site_and_one_to_source_is_text() -> None:
    source = ROOT / "docs" / "worker.md"
    text = "see [the map](../ARCHITECTURE.md#the-map), [tasks](README.md), [it](../src/rallypoint)"
    assert site_hooks.with_links_of_site(text, source, "worker.md") == (
        "see [the map](architecture.md#the-map), [tasks](by-task.md), it"
    )
    assert site_hooks.with_links_of_site(
        "[a](../worker.md)", ROOT / "docs/design/x.md", "design/x.md"
    ) == ("[a](../worker.md)")


def test_a_link_that_leads_nowhere_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    site_hooks.with_links_of_site("[a](gone.md)", ROOT / "docs" / "worker.md", "worker.md")
    assert caplog.messages == ["docs/worker.md: the link 'gone.md' leads nowhere"]


def test_each_public_name_has_a_docstring() -> None:
    assert site_hooks.undocumented() == []
