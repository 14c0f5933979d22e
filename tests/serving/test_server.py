"""Socket, connections and hosts of the server; the batcher: what is joined, what waits, what is refused."""

import asyncio
import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attentune.errors import ConfigError
from attentune.serving.engine import Batcher
from attentune.serving.guard import _with_timeout, allowed_hosts, host_name
from attentune.serving.limits import RequestError
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


def test_hosts_are_named_with_brackets_and_wildcards_for_subdomains_only() -> None:
    assert [host_name(host) for host in ("::1", "[::1]", "[::1]:7860", "A.example:80", "a")] == [
        "[::1]", "[::1]", "[::1]", "a.example", "a",
    ]  # fmt: skip
    if socket.has_ipv6:
        with contextlib.suppress(ConfigError), bound_socket("::1", 0) as listener:
            assert address(listener) == f"http://[::1]:{listener.getsockname()[1]}/"
    # Wildcards are for subdomains only.
    assert allowed_hosts(["*.Example.org:80"]) == ["localhost", "127.0.0.1", "[::1]", "*.example.org"]
    for name in ("*", "*.*", "a*.example.org", "*example.org"):
        with pytest.raises(ConfigError, match=rf"--allowed_hosts {re.escape(name)}: expected host names such as"):
            allowed_hosts([name])
    # The second part of an answer does not wait for an acknowledgement.
    with bound_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


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


# The batcher: what is joined, what waits, what is refused, and whom a failure reaches.


class Doubler:
    """Doubles numbers, notes the batches, and waits in a batch until it may go on."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.gate.wait()
        if any(item < 0 for item in items):
            raise ValueError(f"negative: {min(items)}")
        return [2 * item for item in items]


def run(
    test: Callable[[Batcher, Doubler], Coroutine[Any, Any, None]], *, is_open: bool = True, **options: Any
) -> Doubler:
    """Run a test with a batcher whose batches are computed meanwhile."""

    async def all_of_it() -> Doubler:
        compute = Doubler(is_open=is_open)
        batcher = Batcher(compute, **{"max_batch": 4, "max_wait_s": 0, "max_queue": 100} | options)
        task = asyncio.create_task(batcher.run())
        try:
            async with asyncio.timeout(10):
                await test(batcher, compute)
        finally:
            task.cancel()
        return compute

    return asyncio.run(all_of_it())


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_that_wait_are_joined_and_each_gets_its_own_results() -> None:
    async def test(batcher: Batcher, compute: Doubler) -> None:
        first = asyncio.create_task(batcher.submit([1]))
        await settle()  # is computed alone, and the others wait
        others = [asyncio.create_task(batcher.submit(items)) for items in ([2, 3], [4], [5, 6, 7], [8])]
        await settle()
        assert batcher.waiting == 7
        compute.gate.set()
        assert await first == [2]
        assert await asyncio.gather(*others) == [[4, 6], [8], [10, 12, 14], [16]]

    assert run(test, is_open=False).batches == [[1], [2, 3, 4, 5], [6, 7, 8]]


def test_a_request_larger_than_a_batch_is_divided_and_finished_batches_are_reported() -> None:
    async def test(batcher: Batcher, compute: Doubler) -> None:
        large, small = batcher.submit(list(range(10))), batcher.submit([99])
        assert await asyncio.gather(large, small) == [[2 * n for n in range(10)], [198]]

    assert run(test).batches == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 99]]
    # Finished batches are reported.
    seen: list[tuple[int, bool]] = []

    async def test(batcher: Batcher, compute: Doubler) -> None:
        await batcher.submit([1, 2, 3])

    run(test, on_batch=lambda items, seconds: seen.append((items, 0 <= seconds < 5)))
    assert seen == [(3, True)]


def test_the_first_item_waits_for_others_but_not_in_a_full_batch() -> None:
    async def test(batcher: Batcher, compute: Doubler) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        early = asyncio.create_task(batcher.submit([1]))
        await asyncio.sleep(0.05)
        assert compute.batches == []
        late = asyncio.create_task(batcher.submit([2]))
        assert [await early, await late] == [[2], [4]]
        assert loop.time() - began >= 0.2
        began = loop.time()
        assert await batcher.submit([1, 2, 3, 4]) == [2, 4, 6, 8]
        assert loop.time() - began < 0.2

    assert run(test, max_wait_s=0.2).batches == [[1, 2], [1, 2, 3, 4]]


def test_a_failing_request_fails_alone() -> None:
    async def test(batcher: Batcher, compute: Doubler) -> None:
        answers = await asyncio.gather(*map(batcher.submit, ([1], [-5, 3], [2])), return_exceptions=True)
        assert (answers[0], answers[2]) == ([2], [4])
        assert isinstance(answers[1], ValueError)
        assert str(answers[1]) == "negative: -5"
        assert await batcher.submit([7]) == [14]  # and the batcher goes on

    assert run(test).batches == [[1, -5, 3, 2], [1], [-5, 3], [2], [7]]

    # After its first part has failed the rest of a request is not computed.
    async def test(batcher: Batcher, compute: Doubler) -> None:
        answers = await asyncio.gather(batcher.submit([-1, *range(9)]), batcher.submit([5]), return_exceptions=True)
        assert isinstance(answers[0], ValueError)
        assert answers[1] == [10]

    assert run(test).batches == [[-1, 0, 1, 2], [5]]


def test_a_cancelled_request_leaves_the_queue_and_disturbs_nobody() -> None:
    async def test(batcher: Batcher, compute: Doubler) -> None:
        at_work = asyncio.create_task(batcher.submit([1]))
        await settle()
        gone, stays = asyncio.create_task(batcher.submit([2, 3])), asyncio.create_task(batcher.submit([4]))
        await settle()
        gone.cancel()
        at_work.cancel()
        await settle()
        assert batcher.waiting == 1
        compute.gate.set()
        assert await stays == [8]
        assert gone.cancelled()
        assert at_work.cancelled()

    assert run(test, is_open=False).batches == [[1], [4]]


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    async def test(batcher: Batcher, compute: Doubler) -> None:
        tasks = [asyncio.create_task(batcher.submit([1]))]
        await settle()
        tasks += [asyncio.create_task(batcher.submit([n])) for n in range(5)]
        await settle()
        with pytest.raises(RequestError, match="^5 texts wait") as caught:
            await batcher.submit([1, 2])
        assert (caught.value.status, caught.value.retry_after_s) == (503, 1)
        tasks.append(asyncio.create_task(batcher.submit([9])))  # one more has room
        await settle()
        assert batcher.waiting == 6
        compute.gate.set()
        assert (await asyncio.gather(*tasks))[-1] == [18]
        assert await batcher.submit([1, 2]) == [2, 4]

    run(test, is_open=False, max_queue=6)
