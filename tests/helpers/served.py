"""Runs the server of `attentune serve` in a thread, and sends HTTP requests to it."""

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from attentune.inference.predictor import Predictor
from attentune.serving.api import api_app
from attentune.serving.backend import RunBackend
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
    port: int  # its port on 127.0.0.1
    run: Predictor  # the run that answers

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request; return status, headers and body. A body other than bytes is sent as JSON."""
        return asked(self.port, method, path, body, headers)

    def json(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self.ask(method, path, body)[2])


@contextlib.contextmanager
def serving(run: Predictor, *, name: str = "mine", **options: Any) -> Iterator[Served]:
    """Yield a server of a run that runs until the block ends; for the options see `api_app`."""
    import uvicorn

    with bound_socket("127.0.0.1", 0) as listener:
        app = api_app(RunBackend(run, name=name), **({"hosts": []} | options))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            for _ in range(600):
                if server.started:
                    break
                time.sleep(0.05)
            assert server.started
            yield Served(listener.getsockname()[1], run)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
