"""The server under load, as a program of its own: many at once, slow ones, cut ones, and those who should not ask."""

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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attentune.serving.server import HEAD_TIMEOUT_S
from helpers.hostile_texts import HOSTILE
from helpers.samples import write_reviews
from helpers.served import asked

CLIENTS, REQUESTS = 64, int(os.environ.get("ATTENTUNE_LOAD_REQUESTS", "10000"))
TEXTS = ("yes", "the film was fine " * 20, "😀 שלום " * 40, "word " * 2_000, *HOSTILE[:6])


class Program:
    """`attentune serve` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        """One request: status and body. A body that is no bytes is sent as JSON."""
        status, _, content = asked(self.port, method, path, body, headers, timeout_s=300)
        return status, content

    def explain(self, text: str) -> int:
        return self.ask("POST", "/explain", {"texts": [text], "method": "ssa"})[0]

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def handles(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def program(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    from attentune.cli.main import main

    folder = tmp_path_factory.mktemp("serve")
    write_reviews(folder / "train.csv", 24, seed=1)
    words = f"train --train_file {folder}/train.csv --validation_file {folder}/train.csv --use_cpu --quiet --preset"
    words += f" ssa-hybrid --model_name_or_path {tiny('bert')} --output_dir {folder}/run --num_train_epochs 1"
    assert main(words.split()) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "attentune.cli.main", "serve", str(folder / "run"), "--port", "0"],
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
        raise AssertionError("the server did not start")
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
                status = visited(program, draw)
            except Exception as error:
                troubles.append(f"client {number}: {error!r}")
                return
            with lock:
                found[status] += 1

    clients = [threading.Thread(target=visit, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(3000)
    assert troubles == []
    return found


def visited(program: Program, draw: random.Random) -> int:
    kind, text = draw.random(), f"{draw.choice(TEXTS)} {draw.randrange(9)}"
    if kind < 0.15:
        return program.explain(text)
    if kind < 0.2:
        file = b"text\n" + b"so fine\n" * draw.choice((1, 100, 1000))
        return program.ask("POST", "/file?name=a.csv", file)[0]
    if kind < 0.3:
        host = draw.choice(("evil.example", "127.0.0.1.evil.example"))
        return program.ask("GET", "/example", headers={"Host": host})[0]
    if kind < 0.4:
        return program.ask("POST", "/predict", {}, {"Origin": "http://evil.example"})[0]
    if kind < 0.6:
        return program.ask("POST", "/predict", {"texts": [text]})[0]
    return program.ask("GET", draw.choice(("/", "/health", "/example", "/nothing", "/docs")))[0]


@pytest.mark.slow
def test_sixty_four_clients_and_ten_thousand_requests(program: Program) -> None:
    crowd(program, max(1000, REQUESTS // 5))  # until all is loaded, and as much is remembered as ever will be
    before, began = program.resident_bytes(), time.perf_counter()
    found = crowd(program, REQUESTS)
    seconds, after = time.perf_counter() - began, program.resident_bytes()
    print(f"{sum(found.values())} answers in {seconds:.0f} s: {dict(found)}; memory {before / 2**20:.0f} MB,", end=" ")
    print(f"{(after - before) / before:+.2%}")
    assert sum(found.values()) >= REQUESTS
    assert set(found) <= {200, 400, 403, 404, 422, 503, 504}
    assert after - before < 0.05 * before
    time.sleep(2)
    assert program.handles() < 100


@pytest.mark.slow
def test_slow_clients_are_let_go_and_hold_nobody_up(program: Program) -> None:
    slow = [socket.create_connection(("127.0.0.1", program.port), timeout=60) for _ in range(200)]
    for number, one in enumerate(slow):
        one.sendall((b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: local", b"POST /x HTTP/1.1\r\n")[number % 4])
    began = time.monotonic()
    assert program.ask("GET", "/health")[0] == 200
    assert program.explain("so fine") == 200
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
    assert program.ask("GET", "/health")[0] == 200


@pytest.mark.slow
def test_cut_connections_leave_nothing_behind(program: Program) -> None:
    program.explain("so fine")
    handles = program.handles()
    reset = struct.pack("ii", 1, 0)
    body = json.dumps({"texts": ["x" * 5000]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for number in range(300):
        one = socket.create_connection(("127.0.0.1", program.port), timeout=60)
        one.sendall((head + body)[: 1 + number * 17 % (len(head) + len(body))])
        if number % 2:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        one.close()
    body = json.dumps({"texts": ["so fine"], "method": "ssa"}).encode()
    head = f"POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(30):  # those who ask and do not wait for the answer
        one = socket.create_connection(("127.0.0.1", program.port), timeout=60)
        one.sendall(head + body)
        one.close()
    assert program.explain("so fine") == 200
    deadline = time.monotonic() + 60
    while program.handles() > handles + 5 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert program.handles() <= handles + 5
