"""`attentune serve` as a program of its own: it answers, stops when told to, and says what cannot be."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attentune.inference.predictor import predict
from helpers.served import asked
from helpers.tiny_runs import SPACES, TEXTS, saved_model

KEY = "0123456789abcdef"
# A shell that starts it in the background would have it ignore Ctrl-C, and tests may be run in one.
_START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import attentune.cli.main as m; m.run()"
)


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    return saved_model(tmp_path_factory.mktemp("serve") / "mine", tiny(), SPACES["classification"])


class Program:
    """`attentune serve` in a process of its own, which has said where it is."""

    def __init__(self, run: Path, *flags: str, key: str | None = None) -> None:
        words = [sys.executable, "-c", _START, "serve", str(run), "--port", "0", *flags]
        environment = {name: value for name, value in os.environ.items() if name != "ATTENTUNE_API_KEY"}
        environment |= {} if key is None else {"ATTENTUNE_API_KEY": key}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment)
        self.said = self.process.stderr.readline()
        found = re.fullmatch(
            r"The page is at http://127\.0\.0\.1:(\d+)/, the description of the API at http://127\.0\.0\.1:\1/docs"
            r" \(stop it with Ctrl-C\)\.\n",
            self.said,
        )
        assert found, self.said + self.process.stderr.read()
        self.port = int(found[1])

    def ask(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Send a request; return status and JSON."""
        status, _, content = asked(self.port, "POST", path, body, headers)
        return status, json.loads(content)

    def stop(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal; return status, output and messages."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, out, err


@contextlib.contextmanager
def started(run: Path, *flags: str, key: str | None = None) -> Iterator[Program]:
    program = Program(run, *flags, key=key)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.communicate()


@pytest.mark.integration
def test_many_clients_are_answered_in_batches_and_sigterm_lets_requests_end(run):
    texts = [f"{text} {number}" for number in range(6) for text in TEXTS]
    expected = predict(run, texts)
    with started(run, "--max_wait_ms", "50", "--max_batch", "16", key=KEY) as program:
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert program.ask("/predict", {"texts": ["a"]})[0] == 401
        answers: dict[int, Any] = {}

        def visit(number: int) -> None:
            answers[number] = program.ask("/predict", {"texts": [texts[number]]}, bearer)

        visitors = [threading.Thread(target=visit, args=(number,)) for number in range(len(texts))]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join(60)
        for number, (status, answer) in answers.items():
            (found,) = answer["predictions"]
            assert (status, found["prediction"]) == (200, expected[number]["prediction"])
            assert found["probabilities"] == pytest.approx(expected[number]["probabilities"], abs=1e-5)
        figures = asked(program.port, "GET", "/metrics", headers=bearer)[2].decode()
        assert float(re.findall(r"^attentune_batch_texts_sum (.+)$", figures, re.MULTILINE)[0]) == len(texts)
        assert float(re.findall(r"^attentune_batch_texts_count (.+)$", figures, re.MULTILINE)[0]) <= len(texts) / 2
        # An explanation is at work when the signal comes: it is answered, and nobody is let in any more.
        slow: list[Any] = []
        body = {"texts": [" ".join(TEXTS)], "method": "lime", "samples": 2000}
        client = threading.Thread(target=lambda: slow.append(program.ask("/explain", body, bearer)))
        client.start()
        while b"attentune_explanation_requests 1.0" not in asked(program.port, "GET", "/metrics", headers=bearer)[2]:
            time.sleep(0.02)
        assert program.stop(signal.SIGTERM) == (0, "", "")
        client.join(60)
        assert slow[0][0] == 200
        assert len(slow[0][1]["explanations"]) == 1
        with pytest.raises(ConnectionRefusedError):
            program.ask("/predict", {"texts": ["a"]}, bearer)


@pytest.mark.integration
def test_ctrl_c_ends_with_130_though_a_client_sends_nothing_more(run):
    with started(run) as program, socket.create_connection(("127.0.0.1", program.port), timeout=60) as silent:
        silent.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        # A client that goes while it waits disturbs nobody.
        with socket.create_connection(("127.0.0.1", program.port), timeout=60) as gone:
            body = json.dumps({"texts": [" ".join(TEXTS)] * 8, "method": "lime", "samples": 5000}).encode()
            head = "POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
            gone.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
            while b"attentune_explanation_requests 1.0" not in asked(program.port, "GET", "/metrics")[2]:
                time.sleep(0.02)
        began = time.monotonic()
        while b"attentune_explanation_requests 0.0" not in asked(program.port, "GET", "/metrics")[2]:
            time.sleep(0.02)
        assert time.monotonic() - began < 5
        assert program.ask("/predict", {"texts": ["yes"]})[0] == 200
        silent.close()
        assert program.stop(signal.SIGINT) == (130, "", "attentune: stopped.\n")
