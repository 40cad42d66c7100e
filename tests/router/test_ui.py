"""The files of the page at /ui, over HTTP. `tests/surface/test_ui.py` uses the page in a browser."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from urllib.parse import urljoin

import pytest
from tgi_router.front import Front

from tests.router.conftest import Serve
from tests.router.scripted import ScriptedGenerator, says
from tests.router.serving import Served, already, serving
from tgi_core.config import Settings
from tgi_core.lifecycle import Lifecycle, Phase

FOLDER = Path(str(files("tgi_core") / "ui"))
ASSETS = sorted(path.name for path in FOLDER.iterdir() if path.name != "index.html")


@pytest.mark.parametrize("path", ["/ui", "/ui/"])
def test_the_page_is_of_this_server(hello: Served, path: str) -> None:
    """It loads files of this server only, at paths relative to its own, and each of them is there."""
    page = hello.client.get(path)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert len(named) == 6 and not any(each.startswith(("/", "http")) for each in named)
    for each in named:
        assert hello.client.get(urljoin(str(page.url), each)).status_code == 200, each


@pytest.mark.parametrize("name", ["", *ASSETS])
def test_every_file_has_the_policy(hello: Served, name: str) -> None:
    """A browser runs only scripts and styles that are files of the page, and lets no script assign HTML."""
    answer = hello.client.get(f"/ui/{name}")
    policy = answer.headers["content-security-policy"]
    assert answer.status_code == 200
    assert "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy and "http" not in policy and "*" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "no-referrer"


def test_nothing_is_inline_or_elsewhere() -> None:
    """No file has an inline script, style or handler, or the address of another server; every file is short."""
    page = (FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert all(not content.strip() for content in re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL))
    for path in FOLDER.iterdir():
        text = path.read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text), path.name
        assert len(text.splitlines()) <= 400 and max(map(len, text.splitlines())) <= 140, path.name


@pytest.mark.parametrize("path", ["/ui", "/ui/main.js"])
def test_a_browser_asks_whether_its_copy_is_current(hello: Served, path: str) -> None:
    """Each use of a stored file is checked, and costs a response without a body while the file is the same."""
    first = hello.client.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "no-cache" and first.content
    for known in (tag, f"W/{tag}", f'"old", {tag}', "*"):
        again = hello.client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert "content-security-policy" in again.headers
    assert hello.client.get(path, headers={"if-none-match": '"old"'}).status_code == 200
    head = hello.client.head(path)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", tag)


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "__init__.py", "..%2fpy.typed", "%2e%2e/py.typed", "main.js/"])
def test_there_are_no_other_files(hello: Served, name: str) -> None:
    """Only the page's own files are served, each at one path."""
    assert hello.client.get(f"/ui/{name}").status_code == 404


def test_the_page_needs_no_key(serve: Serve) -> None:
    """Someone without the key gets the page, which asks for the key, but nothing that the page asks for."""
    served, _ = serve(api_key="secret")
    assert all(served.client.get(f"/ui/{name}").status_code == 200 for name in ["", *ASSETS])
    assert served.client.get("/ui").status_code == 200
    for path in ("/info", "/metrics", "/ui/../info", "/ui/%2e%2e/info", "/ui/..%2finfo", "/ui/main.js/info"):
        assert served.client.get(path).status_code == 401, path


def test_the_page_is_there_while_the_model_loads() -> None:
    """It says why the model does not answer yet; with `--no-ui`, the server does."""
    for ui in (True, False):
        front = Front(Settings(ui=ui), Lifecycle(Phase.STARTING))
        with serving(lambda made, front=front: front, already(ScriptedGenerator(lambda request: says()))) as served:
            assert served.client.get("/ui").status_code == served.client.get("/ui/main.js").status_code == (200 if ui else 503)
            assert served.client.get("/info").status_code == 503


def test_the_page_can_be_switched_off(serve: Serve) -> None:
    """With `--no-ui` nothing is there, and no error or document mentions it."""
    served, _ = serve(ui=False)
    for path in ("/ui", "/ui/", "/ui/main.js"):
        answer = served.client.get(path)
        assert answer.status_code == 404 and "/ui" not in answer.text.replace(path, "")
    assert "/ui" not in served.client.get("/openapi.json").json()["paths"]
