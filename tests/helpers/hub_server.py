"""A small server that speaks the Hugging Face hub's protocol for uploads: create, preupload, LFS, commit."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_tests"


class HubServer(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, str | None] = {}
        self.files: dict[str, dict[str, bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.refuse: int | None = None
        self.received: list[bytes] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *words: Any) -> None:
        pass

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.received.append(body)
        self.server.requests.append((self.command, self.path))
        return body

    def do_PUT(self) -> None:
        self.server.objects[self.path.rsplit("/", 1)[1]] = self._body()
        self._answer(200, {})

    def do_POST(self) -> None:
        body, hub = self._body(), self.server
        if hub.refuse is not None:
            self._answer(hub.refuse, {"error": "You don't have the rights to do that."})
        elif self.headers.get("Authorization") not in (f"Bearer {TOKEN}", f"Basic {TOKEN}"):
            self._answer(401, {"error": "Invalid credentials"})
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            known = name in hub.repositories
            hub.repositories.setdefault(name, asked.get("visibility"))
            hub.files.setdefault(name, {})
            self._answer(409 if known else 200, {"url": f"{hub.address}/{name}", "name": name})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".onnx", ".pkl")) else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._answer(200, {"files": modes})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{hub.address}/objects/{one['oid']}", "header": {}}}}
                for one in json.loads(body)["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            self._commit(self.path.split("/api/models/")[1].split("/commit/")[0], body)
        else:
            self._answer(404, {"error": f"no such address: {self.path}"})

    def _commit(self, name: str, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.files[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.files[name][value["path"]] = self.server.objects[value["oid"]]
        commit = "0" * 40
        self._answer(200, {"commitUrl": f"{self.server.address}/{name}/commit/{commit}", "commitOid": commit})


@contextmanager
def hub_server() -> Iterator[HubServer]:
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
