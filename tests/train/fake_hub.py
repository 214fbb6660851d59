"""A hub of one model on this machine: the few answers that huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ID = "Qwen/Tiny"
FIRST, SECOND = "1" * 40, "2" * 40


class FakeHub(ThreadingHTTPServer):
    """Serves `folder` as ID at two commits; `main` is `head`. gated: files are refused. asked: paths."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.head = FIRST
        self.gated = False
        self.broken = False
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        hub = self.server
        path = self.path.partition("?")[0]
        hub.asked.append(path)
        parts = path.strip("/").split("/")
        if hub.broken:
            self._send(500, b"", {})
        elif parts[:2] == ["api", "models"]:
            self._api(parts[2:])
        elif parts[2:3] == ["resolve"]:
            self._file(parts[3], "/".join(parts[4:]), with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _api(self, parts: list[str]) -> None:
        hub = self.server
        if "/".join(parts[:2]) != ID:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        asked = parts[3] if len(parts) > 3 else "main"
        commit = hub.head if asked == "main" else asked
        if commit not in (FIRST, SECOND):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        names = [str(path.relative_to(hub.folder)) for path in hub.files()]
        content: Any = {"id": ID, "sha": commit, "siblings": [{"rfilename": name} for name in names]}
        if parts[2:3] == ["tree"]:
            content = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": _digest(path)}
                for name, path in zip(names, hub.files(), strict=True)
            ]
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _file(self, commit: str, name: str, with_body: bool) -> None:
        path = self.server.folder / name
        if self.server.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        elif not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            headers = {"ETag": f'"{_digest(path)}"', "X-Repo-Commit": commit}
            self._send(200, path.read_bytes(), headers, with_body)

    def _send(self, code: int, body: bytes, headers: dict[str, str], with_body: bool = True) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Tests print what they look for."""


def _digest(path: Path) -> str:
    return hashlib.sha1(path.read_bytes()).hexdigest()


@contextmanager
def served(folder: Path) -> Iterator[FakeHub]:
    hub = FakeHub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def fill_cache(cache: Path, folder: Path, commit: str = FIRST, branch: str = "main") -> Path:
    """The cache as huggingface_hub leaves it: blobs, a snapshot of links, and where the branch stood."""
    store = cache / f"models--{ID.replace('/', '--')}"
    snapshot = store / "snapshots" / commit
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (store / name).mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        blob = store / "blobs" / _digest(path)
        blob.write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    (store / "refs" / branch).write_text(commit, encoding="utf-8")
    return snapshot
