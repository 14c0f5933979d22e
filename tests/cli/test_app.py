"""`attentune app` from the command line: it serves, it stops, and it says what cannot be."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from helpers.samples import settings

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app")
    train(
        load_config(overrides=settings(folder, tiny("bert"), training__max_steps=1)),
        display=ProgressDisplay(quiet=True),
    )
    return folder / "run"


@pytest.fixture
def started(run: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The command, which has said where the page is."""
    # A shell that starts it in the background would have it ignore Ctrl-C, and tests may be run in one.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from attentune.cli.main import run; run()"
    )
    words = ["app", str(run), "--compare_with", str(run), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**__import__("os").environ, "TMPDIR": str(tmp_path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if "page is at" in line:
            return line
    raise AssertionError("it ended")


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_it_serves_until_it_is_stopped_and_leaves_nothing(
    started: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    line = said_line(started)
    found = re.fullmatch(r"The page is at http://127\.0\.0\.1:(\d+)/ \(stop it with Ctrl-C\)\.\n", line)
    assert found
    # A visitor whose upload never ends does not keep it from ending.
    connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=90)
    connection.putrequest("POST", "/gradio_api/upload")
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"--x")
    started.send_signal(number)
    out, err = started.communicate(timeout=90)
    assert (started.returncode, out) == (130, "")
    assert err.endswith("attentune: stopped.\n")
    assert "Traceback" not in err
    assert list(tmp_path.glob("attentune-app-*")) == []
    connection.close()


def test_mistakes_are_one_line_each(attentune: Command, run: Path, tmp_path: Path) -> None:
    status, out, err = attentune("app", run, "--port", "x", "--max_rows", 0, "--max_upload_mb", "1.5")
    assert (status, out) == (2, "")
    assert [line.split(":")[1] for line in err.splitlines()] == [" --port", " --max_upload_mb", " --max_rows"]
    status, _, err = attentune("app", run, "--port", 70000)
    assert (status, err) == (2, "attentune: --port: got 70000, expected a number from 0 to 65535.\n")
    status, _, err = attentune("app", run, "--host", "192.0.2.1")
    assert status == 2
    assert err.startswith("attentune: --host 192.0.2.1 --port 7860: cannot listen there (")
    status, _, err = attentune("app", tmp_path / "none", "--port", 0)
    assert status == 2
    assert str(tmp_path / "none") in err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = attentune("app", run, "--port", port)
    assert status == 2
    assert f"--port {port}: cannot listen there (Address already in use). Choose another port" in err


def test_without_gradio_it_says_how_to_get_it(attentune: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, out, err = attentune("app", run)
    assert (status, out) == (2, "")
    assert err == "attentune: app: needs Gradio, which is not installed; run: pip install 'attentune[app]'\n"
