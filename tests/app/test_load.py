"""The page under load, as a program of its own: many at once, slow ones, cut ones, and those who should not ask."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attentune.app.service import PREDICTED
from attentune.serving.server import HEAD_TIMEOUT_S
from helpers.app_server import asked
from helpers.hostile_texts import HOSTILE
from helpers.samples import write_reviews

CLIENTS, REQUESTS = 64, int(os.environ.get("ATTENTUNE_LOAD_REQUESTS", "10000"))
TEXTS = ("yes", "the film was fine " * 20, "😀 שלום " * 40, "word " * 2_000, *HOSTILE[:6])


class Program:
    """`attentune app` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        config = json.loads(self.ask("GET", "/config")[1])
        self.functions = {function["api_name"]: function["id"] for function in config["dependencies"]}

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """One request: status and body. A body that is no bytes is sent as JSON."""
        status, _, content = asked(self.port, method, path, body, headers, timeout_s=300)
        return status, content

    def explain(self, text: str) -> list[int]:
        """The statuses of a text's explanation, which takes two requests."""
        session = uuid.uuid4().hex
        request = {
            "data": [text, "", "ssa", "word", PREDICTED],
            "fn_index": self.functions["explain"],
            "session_hash": session,
        }
        status, _ = self.ask("POST", "/gradio_api/queue/join", request)
        if status != 200:
            return [status]
        after, stream = self.ask("GET", f"/gradio_api/queue/data?session_hash={session}")
        assert b'"process_completed"' in stream, stream[-300:]
        assert b'"success":true' in stream.replace(b" ", b""), stream[-300:]
        return [status, after]

    def upload(self, content: bytes) -> list[int]:
        mark = uuid.uuid4().hex
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="a.csv"\r\n\r\n'
        kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
        return [
            self.ask("POST", "/gradio_api/upload", head.encode() + content + f"\r\n--{mark}--\r\n".encode(), kind)[0]
        ]

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def handles(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def program(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("app")
    write_reviews(folder / "train.csv", 24, seed=1)
    words = f"train --train_file {folder}/train.csv --validation_file {folder}/train.csv --use_cpu --quiet --preset"
    words += f" ssa-hybrid --model_name_or_path {tiny('bert')} --output_dir {folder}/run --num_train_epochs 1"
    assert main(words.split()) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "attentune.cli.main", "app", str(folder / "run"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MALLOC_ARENA_MAX": "2"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
            break
    else:
        raise AssertionError("the page did not start")
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        yield Program(process, int(found[1]))
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        reader.join(10)
    assert "Traceback" not in "".join(said)


def crowd(program: Program, requests: int) -> Counter[int]:
    """So many requests of all kinds by 64 clients at once; the statuses of their answers."""
    left, lock, found = [requests], threading.Lock(), Counter[int]()
    troubles: list[str] = []

    def visit(number: int) -> None:
        draw = random.Random(number)
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            try:
                statuses = visited(program, draw)
            except Exception as error:
                troubles.append(f"client {number}: {error!r}")
                return
            with lock:
                left[0] -= len(statuses) - 1
                found.update(statuses)

    clients = [threading.Thread(target=visit, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(3000)
    assert troubles == []
    return found


def visited(program: Program, draw: random.Random) -> list[int]:
    """One visit of any kind."""
    kind = draw.random()
    if kind < 0.15:
        return program.explain(f"{draw.choice(TEXTS)} {draw.randrange(9)}")
    if kind < 0.2:
        return program.upload(b"text\n" + b"so fine\n" * draw.choice((1, 100, 10_000)))
    if kind < 0.3:
        return [
            program.ask("GET", "/config", headers={"Host": draw.choice(("evil.example", "127.0.0.1.evil.example"))})[0]
        ]
    if kind < 0.4:
        return [program.ask("POST", "/gradio_api/queue/join", {}, {"Origin": "http://evil.example"})[0]]
    return [program.ask("GET", draw.choice(("/", "/config", "/theme.css", "/nothing", "/gradio_api/info")))[0]]


@pytest.mark.slow
def test_sixty_four_clients_and_ten_thousand_requests(program: Program) -> None:
    crowd(program, max(1000, REQUESTS // 5))  # until all is loaded, and as much is remembered as ever will be
    before, began = program.resident_bytes(), time.perf_counter()
    found = crowd(program, REQUESTS)
    seconds, after = time.perf_counter() - began, program.resident_bytes()
    print(f"{sum(found.values())} answers in {seconds:.0f} s: {dict(found)}; memory {before / 2**20:.0f} MB,", end=" ")
    print(f"{(after - before) / before:+.2%}")
    assert sum(found.values()) >= REQUESTS
    assert set(found) <= {200, 400, 403, 404}
    assert after - before < 0.05 * before
    time.sleep(2)
    assert program.handles() < 100


@pytest.mark.slow
def test_slow_clients_are_let_go_and_hold_nobody_up(program: Program) -> None:
    slow = [socket.create_connection(("127.0.0.1", program.port), timeout=60) for _ in range(200)]
    for number, one in enumerate(slow):
        one.sendall((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: local", b"POST /x HTTP/1.1\r\n")[number % 4])
    began = time.monotonic()
    assert program.ask("GET", "/config")[0] == 200
    assert program.explain("so fine") == [200, 200]
    assert time.monotonic() - began < HEAD_TIMEOUT_S, "an answer waited for the slow ones"
    for number, one in enumerate(slow[::10]):
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            one.sendall(b"x")  # a byte now and then is no reason to wait longer
        assert number < 20
    for one in slow:
        one.settimeout(3 * HEAD_TIMEOUT_S)
        with contextlib.suppress(ConnectionError):
            assert one.recv(1) == b""
        one.close()
    assert time.monotonic() - began < 4 * HEAD_TIMEOUT_S
    assert program.ask("GET", "/config")[0] == 200


@pytest.mark.slow
def test_cut_connections_leave_nothing_behind(program: Program) -> None:
    program.explain("so fine")
    handles = program.handles()
    reset = struct.pack("ii", 1, 0)
    body = json.dumps({"data": ["x" * 5000], "fn_index": 0, "session_hash": "cut"}).encode()
    head = f"POST /gradio_api/queue/join HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for number in range(300):
        one = socket.create_connection(("127.0.0.1", program.port), timeout=60)
        one.sendall((head + body)[: 1 + number * 17 % (len(head) + len(body))])
        if number % 2:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        one.close()
    for _ in range(30):  # those who ask and do not wait for the answer
        session = uuid.uuid4().hex
        request = {"data": ["so fine", "", "ssa", "word", PREDICTED], "fn_index": program.functions["explain"]}
        assert program.ask("POST", "/gradio_api/queue/join", request | {"session_hash": session})[0] == 200
        one = socket.create_connection(("127.0.0.1", program.port), timeout=60)
        one.sendall(f"GET /gradio_api/queue/data?session_hash={session} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        one.close()
    assert program.explain("so fine") == [200, 200]
    deadline = time.monotonic() + 60
    while program.handles() > handles + 5 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert program.handles() <= handles + 5
