"""MkDocs hooks that add documents outside docs/ and the HTTP API to the site described by mkdocs.yml.

Links in documents are relative to the repository; on the site, they are rewritten to point to pages. A link to a source file
becomes plain text, or a link below the URL in DOCS_REPOSITORY if set. A link to a missing file is a warning, so `mkdocs build
--strict` fails.
"""

from __future__ import annotations

import json
import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
MERMAID = ROOT / "build/mermaid/package/dist/mermaid.min.js"

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "conformance-tests/README.md": "conformance-suite.md",
    "backends/cpu/README.md": "backends/cpu.md",
    "backends/cuda/README.md": "backends/cuda.md",
    "backends/gaudi/README.md": "backends/gaudi.md",
    "backends/neuron/README.md": "backends/neuron.md",
    "backends/rocm/README.md": "backends/rocm.md",
    "backends/static-cpu/README.md": "backends/static-cpu.md",
    "backends/xpu/README.md": "backends/xpu.md",
    "examples/README.md": "examples/index.md",
    "examples/backend-numpy/README.md": "examples/backend-numpy.md",
    "examples/backend-static/README.md": "examples/backend-static.md",
    "tgi_core/demo/README.md": "demo-model.md",
}
_SOURCES = {page: source for source, page in OUTSIDE.items()}
_HTTP_API = "http-api.md"

_FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
_log = logging.getLogger("mkdocs.hooks.docs_site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Load mermaid from the site itself if `make docs` has downloaded it; otherwise the theme uses a CDN."""
    if MERMAID.exists():
        config.extra_javascript.append("assets/mermaid.min.js")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages whose source is outside docs/."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, _HTTP_API, content=http_api(json.loads((ROOT / "docs/openapi.json").read_text()))))
    if MERMAID.exists():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links."""
    return with_site_links(_without_front_matter(markdown), page.file.src_uri)


def with_site_links(markdown: str, uri: str) -> str:
    """Rewrite the links in the text of page `uri` to pages of the site, except in code blocks."""
    source = _SOURCES.get(uri, DOCS + uri)
    parts = _FENCED.split(markdown)
    parts[::2] = (_LINK.sub(lambda link: _pointed(link, source, uri), part) for part in parts[::2])
    return "".join(parts)


def http_api(document: dict[str, Any]) -> str:
    """Format the routes of an OpenAPI document, with the fields of their bodies and the fields' types, as Markdown."""
    lines = [
        "# HTTP API",
        "",
        "Generated from [openapi.json](openapi.json). A running server has the same document at `/api-doc/openapi.json`.",
    ]
    schemas, named = document["components"]["schemas"], dict[str, None]()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += ["", f"## `{method.upper()} {path}`", "", operation.get("description") or operation["summary"]]
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            if reference := content.get("schema", {}).get("$ref"):
                lines += _fields(schemas[_name(reference)], named)
    lines += ["", "## Types"]
    done = set[str]()
    while left := [name for name in named if name not in done]:
        for name in left:
            lines += ["", f"### {name}", "", schemas[name].get("description", ""), *_fields(schemas[name], named)]
        done.update(left)
    return "\n".join([*lines, ""])


def _fields(schema: dict[str, Any], named: dict[str, None]) -> list[str]:
    """Format a table of an object's fields. Adds the types that it refers to to `named`."""
    if "properties" not in schema:
        return ["", f"One of {', '.join(f'`{value}`' for value in schema['enum'])}."] if "enum" in schema else []
    required = schema.get("required", [])
    rows = [
        f"| `{name}` | {_type(value, named)} | {'*required*' if name in required else _default(value)} | {_text(value)} |"
        for name, value in schema["properties"].items()
    ]
    return ["", "| field | type | default | |", "|---|---|---|---|", *rows]


def _type(schema: dict[str, Any], named: dict[str, None]) -> str:
    if "$ref" in schema:
        name = _name(schema["$ref"])
        named[name] = None
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(_type(choice, named) for choice in choices)
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}), named)}"
    return str(schema.get("type", "any"))


def _text(schema: dict[str, Any]) -> str:
    return " ".join(schema.get("description", "").split()).replace("|", "\\|")


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _default(schema: dict[str, Any]) -> str:
    return f"`{json.dumps(schema['default'])}`" if "default" in schema else ""


def _without_front_matter(markdown: str) -> str:
    """Remove the YAML front matter of a model card, which a generated page would show as text."""
    return re.sub(r"\A---\n.*?\n---\n", "", markdown, flags=re.DOTALL)


def _pointed(link: re.Match[str], source: str, uri: str) -> str:
    """Rewrite a link in `source`, a path in the repository, for the page `uri`."""
    image, label, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
    if re.match(r"[a-z]+:", target):
        return link.group()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    here = posixpath.dirname(uri) or "."
    if path in OUTSIDE or path.startswith(DOCS):
        page = OUTSIDE.get(path, path.removeprefix(DOCS))
        return f"{image}[{label}]({posixpath.relpath(page, here)}{anchor})"
    if f"{path}/README.md" in OUTSIDE:
        return f"[{label}]({posixpath.relpath(OUTSIDE[f'{path}/README.md'], here)}{anchor})"
    if not (ROOT / path).exists():
        _log.warning("%s links to %s, which does not exist", source, target)
    repository = os.environ.get("DOCS_REPOSITORY", "").rstrip("/")
    return f"[{label}]({repository}/{path}{anchor})" if repository else label
