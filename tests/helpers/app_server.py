"""Runs the page's server in a thread, and sends HTTP requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attentune.app.server import page_app
from attentune.app.service import ExplanationService
from attentune.serving.server import bound_socket

Answer = tuple[int, dict[str, str], bytes]


def asked(
    port: int, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, *, timeout_s: int = 180
) -> Answer:
    """Send a request to 127.0.0.1; return status, headers and body. A body other than bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    sent = {"Content-Type": "application/json"} if body is not None and not isinstance(body, bytes) else {}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    with contextlib.closing(connection):
        connection.request(method, path, data, sent | (headers or {}))
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@dataclass(frozen=True)
class Served:
    """A running server."""

    port: int  # its port on 127.0.0.1
    service: ExplanationService  # the service that answers the requests
    folder: Path  # the folder of uploaded files and predictions

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request; return status, headers and body. A body other than bytes is sent as JSON."""
        return asked(self.port, method, path, body, headers)

    @cached_property
    def functions(self) -> dict[str, int]:
        """The indices of the page's functions by name."""
        config = json.loads(self.ask("GET", "/config")[2])
        return {function["api_name"]: function["id"] for function in config["dependencies"]}

    def call(self, name: str, *given: Any) -> list[Any]:
        """Call a function of the page through the queue, as the page does; return its outputs."""
        session = uuid.uuid4().hex
        request = {"data": list(given), "fn_index": self.functions[name], "session_hash": session}
        status, _, body = self.ask("POST", "/gradio_api/queue/join", request)
        assert status == 200, (status, body[:500])
        status, _, stream = self.ask("GET", f"/gradio_api/queue/data?session_hash={session}")
        assert status == 200
        for line in stream.decode().splitlines():
            if line.startswith("data:"):
                message = json.loads(line[5:])
                if message["msg"] == "process_completed":
                    assert message["success"], message
                    return message["output"]["data"]
        raise AssertionError(stream[-500:])

    def mask(self, text: str, pair: str | None, *words: tuple[str, int, int]) -> Any:
        """Ask for the predictions with words masked; return the JSON."""
        status, _, body = self.ask("POST", "/mask", {"text": text, "pair": pair, "words": words})
        assert status in (200, 400), (status, body)
        return json.loads(body)

    def upload(self, name: str, content: bytes) -> str:
        """Upload a file; return its path on the server."""
        mark = uuid.uuid4().hex
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        body = head.encode() + content + f"\r\n--{mark}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        status, _, answer = self.ask("POST", "/gradio_api/upload", body, kind)
        assert status == 200, (status, answer)
        return json.loads(answer)[0]

    def call_with_file(self, path: str | None, *columns: Any) -> list[Any]:
        """Return the page's outputs for a file on the server."""
        given = None if path is None else {"path": path, "meta": {"_type": "gradio.FileData"}}
        return self.call("predict", given, *(columns or (None, None, False)))


@contextlib.contextmanager
def serving(
    service: ExplanationService,
    *,
    hosts: Sequence[str] = (),
    title: str = "Attentune",
    build_report: Callable[[Path], None] | None = None,
) -> Iterator[Served]:
    """Yield a server that runs until the block ends."""
    import uvicorn

    with tempfile.TemporaryDirectory() as folder, bound_socket("127.0.0.1", 0) as listener:
        app = page_app(service, Path(folder), hosts=hosts, title=title, build_report=build_report)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            for _ in range(600):
                if server.started:
                    break
                time.sleep(0.05)
            assert server.started
            yield Served(listener.getsockname()[1], service, Path(folder))
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
