"""Drives a headless Chromium over the DevTools protocol. Uses an installed browser, such as Debian's `chromium`.

`problems` are those that axe-core finds on a page.
"""

import contextlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--mute-audio",
    "--remote-debugging-port=0",
)  # fmt: skip


class Page:
    def __init__(self, socket: Any) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.requests: list[str] = []
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method: str, timeout_s: float = 90.0, **params: Any) -> dict[str, Any]:
        """Send a DevTools command; return the browser's response."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        end = time.monotonic() + timeout_s
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.1, end - time.monotonic())))
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Page.javascriptDialogOpening":
                self.dialogs.append(params["message"])
                self._socket.send(
                    json.dumps({"id": next(self._numbers), "method": "Page.handleJavaScriptDialog",
                                "params": {"accept": False}})
                )  # fmt: skip
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(params["exceptionDetails"])[:500])
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, url: str, ready: str = "document.readyState === 'complete'") -> None:
        """Navigate to a URL and wait until the expression `ready` is true."""
        self.send("Page.navigate", url=url)
        self.wait(ready)

    def run(self, script: str) -> Any:
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str, timeout_s: float = 90.0) -> None:
        end = time.monotonic() + timeout_s
        while not self.run(f"(() => {{ try {{ return Boolean({condition}) }} catch {{ return false }} }})()"):
            assert time.monotonic() < end, f"waited {timeout_s:g} s for {condition}; errors: {self.errors}"
            time.sleep(0.05)

    def fill(self, selector: str, value: str | float) -> None:
        """Set the value of a field, with the events of typing or pasting."""
        self.run(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)});"
            " Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set.call(field,"
            f" {json.dumps(value)}); for (const kind of ['input', 'change', 'pointerup'])"
            " field.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def upload(self, selector: str, path: Path) -> None:
        root = self.send("DOM.getDocument", depth=0)["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def text(self, selector: str) -> str:
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)


@contextlib.contextmanager
def browser_page(folder: Path) -> Iterator[Page]:
    """Yield the tab of a new browser; fail the test if no browser is installed."""
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.fail("no Chromium: install Debian's package chromium (apt-get install chromium), or Google Chrome")
    profile = folder / "profile"
    process = subprocess.Popen(
        [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port = _port(profile / "DevToolsActivePort", process)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            (tab, *_) = [target for target in json.load(answer) if target["type"] == "page"]
        with connect(tab["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    for _ in range(300):
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(file.read_text().splitlines()[0])
        assert process.poll() is None, f"Chromium ended with status {process.returncode}"
        time.sleep(0.1)
    raise AssertionError("Chromium did not come up within 30 s")


_ROOT = Path(__file__).parents[2]
AXE = _ROOT / "node_modules" / "axe-core" / "axe.min.js"


def problems(page: Page) -> list[str]:
    """Return what axe-core finds that is serious or critical; fail the test if it is not installed."""
    if not AXE.is_file():
        pytest.fail(f"no {AXE}: run `npm install --no-save --no-package-lock axe-core@4` in {_ROOT}")
    page.run(f"{AXE.read_text(encoding='utf-8')}; 0")
    found = json.loads(page.run("axe.run(document).then(found => JSON.stringify(found.violations))"))
    return [
        f"{one['id']}: {node['html'][:150]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
