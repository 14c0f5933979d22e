"""The socket and the connections of the server, and the hosts that it answers for and asks."""

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attentune.errors import ConfigError
from attentune.serving.guard import _with_timeout, allowed_hosts, host_name
from attentune.serving.server import address, bound_socket
from helpers.served import serving
from helpers.tiny_runs import TEXTS, tiny_run


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


def test_an_address_of_ipv6_has_brackets() -> None:
    assert [host_name(host) for host in ("::1", "[::1]", "[::1]:7860", "A.example:80", "a")] == [
        "[::1]", "[::1]", "[::1]", "a.example", "a",
    ]  # fmt: skip
    if socket.has_ipv6:
        with contextlib.suppress(ConfigError), bound_socket("::1", 0) as listener:
            assert address(listener) == f"http://[::1]:{listener.getsockname()[1]}/"


def test_the_second_part_of_an_answer_does_not_wait_for_an_acknowledgement() -> None:
    with bound_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_wildcards_are_for_subdomains_only() -> None:
    assert allowed_hosts(["*.Example.org:80"]) == ["localhost", "127.0.0.1", "[::1]", "*.example.org"]
    for name in ("*", "*.*", "a*.example.org", "*example.org"):
        with pytest.raises(ConfigError, match=rf"--allowed_hosts {re.escape(name)}: expected host names such as"):
            allowed_hosts([name])


def test_no_other_host_is_looked_up(tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    names: set[str] = set()
    ask = socket.getaddrinfo

    def noted(host: Any, *options: Any, **more: Any) -> Any:
        names.add(str(host))
        return ask(host, *options, **more)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    with serving(tiny_run(tiny())) as served:
        assert served.ask("GET", "/")[0] == 200
        assert served.json("POST", "/explain", {"texts": [TEXTS[0]]})["explanations"]
    assert names == {"127.0.0.1"}


def test_a_request_that_is_cancelled_as_its_body_arrives_does_not_wait_for_its_client() -> None:
    """With `asyncio.wait_for` of Python 3.11, sixty-four clients who asked for `/example` were never answered."""

    async def scenario() -> None:
        body = asyncio.get_running_loop().create_future()

        async def receive() -> dict[str, object]:
            return await asyncio.shield(body)

        timed = _with_timeout(receive, 5)
        task = asyncio.create_task(timed())
        await asyncio.sleep(0.01)
        body.set_result({"type": "http.request", "body": b"", "more_body": False})
        await asyncio.sleep(0)  # what waits inside is done, and what waits for that is not yet told
        if not task.done():
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
