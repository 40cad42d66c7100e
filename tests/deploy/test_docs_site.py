"""The documentation site has the pages outside docs/ and the HTTP API, and its links lead to pages. `make check` builds it."""

from __future__ import annotations

import json
import re

import pytest

from scripts.docs_site import ROOT, http_api, with_site_links


@pytest.mark.parametrize(
    ("uri", "link", "expected"),
    [
        ("index.md", "[flags](docs/flags.md#http)", "[flags](flags.md#http)"),
        ("index.md", "![chart](docs/benchmarks.svg)", "![chart](benchmarks.svg)"),
        ("backends/rocm.md", "[cuda](../cuda/README.md)", "[cuda](cuda.md)"),
        ("writing-a-backend.md", "[example](../examples/backend-numpy)", "[example](examples/backend-numpy.md)"),
        ("writing-a-backend.md", "[hooks](../tgi_core/backend/spec.py)", "hooks"),
        ("index.md", "[site](https://example.com/a)", "[site](https://example.com/a)"),
        ("index.md", "```\n[flags](docs/flags.md)\n```", "```\n[flags](docs/flags.md)\n```"),
    ],
)
def test_links(uri: str, link: str, expected: str) -> None:
    """A link written for the repository leads to the page on the site; code blocks stay as they are."""
    assert with_site_links(link, uri) == expected


def test_sources_become_links_below_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCS_REPOSITORY is where source files are."""
    monkeypatch.setenv("DOCS_REPOSITORY", "https://example.com/blob/main/")
    text = with_site_links("[hooks](../tgi_core/backend/spec.py)", "writing-a-backend.md")
    assert text == "[hooks](https://example.com/blob/main/tgi_core/backend/spec.py)"


def test_a_link_to_nothing_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """`mkdocs build --strict` fails by it."""
    with_site_links("[gone](../tgi_core/gone.py)", "ranks.md")
    assert "docs/ranks.md links to ../tgi_core/gone.py, which does not exist" in caplog.text


def test_the_http_api() -> None:
    """Each route is a section, and each type that a field names is described."""
    document = json.loads((ROOT / "docs/openapi.json").read_text())
    page = http_api(document)
    assert all(f" {path}`" in page for path in document["paths"])
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    assert {"parameters", "message"} <= headings and set(re.findall(r"\]\(#([\w-]+)\)", page)) <= headings
