"""A connection that sends nothing, or too slowly, is let go; one that is being answered is not."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attentune.app.security import SecurityMiddleware


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server whose one answer takes a second, and that waits half a second for a head."""
    import uvicorn

    from attentune.serving import server as timeouts

    monkeypatch.setattr(timeouts, "HEAD_TIMEOUT_S", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await asyncio.sleep(1.0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=timeouts.HeaderTimeout, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(20)


@pytest.mark.integration
@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(port: int, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(sent)
        assert one.recv(10) == b""


@pytest.mark.integration
def test_a_slow_answer_is_waited_for_and_the_next_head_is_not(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        one.settimeout(20)
        while one.recv(1000):
            pass


def test_a_body_that_stops_gets_a_message(tmp_path: Path) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    async def receive() -> Any:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    protected = SecurityMiddleware(app, uploads=tmp_path, body_timeout_s=0.05)
    for path in ("/gradio_api/upload", "/gradio_api/queue/join"):
        sent.clear()
        head = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")]}
        asyncio.run(protected(head, receive, send))
        assert sent[0]["status"] == 408
        assert sent[1]["body"] == b"The rest of the request did not arrive within 0.05 s. Send it again.\n"
