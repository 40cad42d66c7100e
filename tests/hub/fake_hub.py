"""A hub on the loopback: repositories with commits, gates and faults, and a record of every request."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


def commit_of(text: str) -> str:
    """Forty hexadecimal digits, as git names commits."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass
class Repository:
    """Files by commit, and branches and tags by name."""

    commits: dict[str, dict[str, bytes]]
    references: dict[str, str]
    gated: bool = False
    token: str | None = None
    """Who does not send it is told that there is no such repository, as the hub does with private ones."""


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    authorization: str | None


@dataclass
class FakeHub:
    """`repositories` by id; what was asked so far; a status to answer everything with, if any."""

    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    fault: int | None = None
    stalled: threading.Event = field(default_factory=threading.Event)
    """Set when the body of `stall`'s file is held back, which lasts until `go_on` is set."""
    go_on: threading.Event = field(default_factory=threading.Event)
    stall: str = ""

    def add(self, name: str, files: dict[str, bytes], **rest: object) -> str:
        """A repository with one commit on main; the commit."""
        commit = commit_of(name)
        self.repositories[name] = Repository({commit: files}, {"main": commit}, **rest)  # type: ignore[arg-type]
        return commit

    def files_asked(self) -> list[tuple[str, str]]:
        """Revision and name of each file that was asked for."""
        found = [asked.path.split("/resolve/", 1)[1].split("/", 1) for asked in self.asked if "/resolve/" in asked.path]
        return [(revision, name) for revision, name in found]


@contextmanager
def fake_hub() -> Generator[FakeHub, None, None]:
    """A hub that runs as long as the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        server.hub = FakeHub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.hub  # type: ignore[attr-defined]
        finally:
            server.hub.go_on.set()  # type: ignore[attr-defined]
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._handle()

    def do_GET(self) -> None:
        self._handle()

    def _handle(self) -> None:
        hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        hub.asked.append(Asked(self.command, path, self.headers.get("Authorization")))
        if hub.fault is not None:
            self._answer(hub.fault, b"{}", {"X-Error-Message": "out of order"})
        elif path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            self._info(hub, name, revision or "main")
        elif "/resolve/" in path:
            name, _, rest = path.lstrip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            self._file(hub, name, revision, file)
        else:
            self._answer(404, b"{}")

    def _open(self, hub: FakeHub, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files; None if the answer has been given."""
        repository = hub.repositories.get(name)
        token = None if repository is None else repository.token
        if repository is None or (token is not None and self.headers.get("Authorization") != f"Bearer {token}"):
            self._answer(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        commit = repository.references.get(revision, revision)
        if commit not in repository.commits:
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            return None
        return commit, repository.commits[commit]

    def _info(self, hub: FakeHub, name: str, revision: str) -> None:
        if (found := self._open(hub, name, revision)) is None:
            return
        commit, files = found
        siblings = [{"rfilename": file, "size": len(content), "blobId": commit_of(file)} for file, content in files.items()]
        body = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
        self._answer(200, json.dumps(body).encode())

    def _file(self, hub: FakeHub, name: str, revision: str, file: str) -> None:
        if (found := self._open(hub, name, revision)) is None:
            return
        commit, files = found
        if hub.repositories[name].gated:
            self._answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        elif file not in files:
            self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        else:
            if self.command == "GET" and file == hub.stall:
                hub.stalled.set()
                hub.go_on.wait(60)
            etag = hashlib.sha256(files[file]).hexdigest()
            self._answer(200, files[file], {"X-Repo-Commit": commit, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
