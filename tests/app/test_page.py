"""The page in a real browser: what a person sees and does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from attentune.app.limits import RequestLimits
from attentune.app.service import ExplanationService
from attentune.inference.predictor import predict
from helpers.app_server import Served, serving
from helpers.browser import Page, browser_page
from helpers.explain_runs import TEXTS, tiny_run
from helpers.hostile_texts import HOSTILE

pytestmark = pytest.mark.slow  # Chromium is needed

Tiny = Callable[..., Path]
READY = "document.querySelector('#text textarea') && document.querySelector('button#explain')"
BOXES = "document.querySelectorAll('#result .att-box').length"
TEXT = TEXTS[0]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def served(tiny: Tiny, page: Page) -> Iterator[Served]:
    runs = [("mine", tiny_run(tiny())), ("other", tiny_run(tiny(), gate=False))]
    with serving(ExplanationService(runs, limits=RequestLimits(characters=50_000, rows=50))) as found:
        yield found


def ask(page: Page, text: str) -> None:
    """Type a text, press the button and wait for an answer that was not there before."""
    page.run("document.querySelectorAll('#result .att').forEach(part => part.remove())")
    page.fill("#text textarea", text)
    page.click("button#explain")
    page.wait("document.querySelector('#result .att')")


def only_own_host(page: Page, served: Served) -> bool:
    """Whether the page asked for nothing but what its own server has."""
    own = urlsplit(served.url).netloc
    return {urlsplit(url).netloc for url in page.requests if not url.startswith(("data:", "blob:"))} == {own}


def test_type_a_text_and_see_what_the_runs_say(page: Page, served: Served) -> None:
    page.requests.clear()
    page.open(served.url, READY)
    assert page.run("document.title") == "Attentune"
    ask(page, TEXT)
    assert page.run(BOXES) == 2
    for number, (_, run) in enumerate(served.service.runs):
        (said,) = predict(run, [TEXT])
        box = page.run(f"document.querySelectorAll('#result .att-box')[{number}].innerText")
        assert str(said["prediction"]) in box
        assert f"{max(said['probabilities'].values()):.1%}" in box
    # Mask a word: the prediction changes live.
    page.fill("#slider input[type=range]", 4)
    page.wait("document.querySelectorAll('#masked mark').length == 2")
    assert "4 of 11, unwatchable" in page.text("#slider")
    assert "The actors seem [MASK], and the plot never moves!" in page.text("#masked")
    # Nothing: and the page says so.
    ask(page, "")
    assert page.text("#result").strip() == "There is no text yet. Type or paste one, then try again."
    # A hostile text.
    ask(page, "<img src=x onerror=alert(1)>{{7*7}}${7*7}")
    assert "<img src=x onerror=alert(1)>{{7*7}}${7*7}" in page.text("#result")
    assert page.run("document.querySelectorAll('#result img, #result script').length") == 0
    assert (page.dialogs, page.errors) == ([], [])
    assert only_own_host(page, served)


def test_hostile_texts_do_nothing(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    for number, text in enumerate(HOSTILE):
        ask(page, text)
        if number % 10 == 0 and page.run("document.querySelector('#slider input')") is not None:
            page.fill("#slider input[type=range]", 1)
            page.wait("document.querySelector('#masked .att')")
        found = page.run(
            "[...document.querySelectorAll('#result .att *, #masked .att *')].filter(part =>"
            " !/^(div|section|h3|p|strong|span|bdi|mark)$/i.test(part.tagName))"
            ".map(part => part.outerHTML)"
        )
        assert found == [], text
        assert page.run("document.title") == "Attentune"
    assert (page.dialogs, page.errors) == ([], [])
    assert only_own_host(page, served)


def test_a_megabyte_of_text_is_answered_with_a_message(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, "word " * 200_000)
    assert page.text("#result").strip().startswith(
        "The text has 1,000,000 characters; this page accepts at most 50,000. Shorten it, or start the page with"
    )  # fmt: skip
    ask(page, "word " * 10_000)
    assert page.run(BOXES) == 2
    assert page.errors == []


def test_methods_units_heads_and_files(page: Page, served: Served, tmp_path: Path) -> None:
    page.open(served.url, READY)
    ask(page, TEXT)
    assert "ssa needs a model that scores tokens" in page.text("#result")
    # Another method, chosen in the list: explained again without a press of the button.
    page.click("#method input")
    page.run("document.querySelector('#method input').dispatchEvent(new FocusEvent('focus'))")
    page.wait("document.querySelector('[role=option]')")
    page.run(
        "[...document.querySelectorAll('[role=option]')].find(part => part.innerText.trim().endsWith('leave-one-out'))"
        ".dispatchEvent(new MouseEvent('mousedown', {bubbles: true}))"
    )
    page.wait("document.querySelector('#result').innerText.includes('leave-one-out for and against')")
    words = page.run("document.querySelectorAll('#result .t').length")
    page.click("#unit label:nth-of-type(2) input")
    page.wait(f"document.querySelectorAll('#result .t').length > {words}")
    page.click("#heads button")
    page.wait("document.querySelector('button#show-heads').offsetParent")
    page.click("button#show-heads")
    page.wait("document.querySelectorAll('#head-table table').length == 2")
    # A file goes up, and comes back with predictions.
    page.run("[...document.querySelectorAll('[role=tab]')].find(part => part.innerText.trim() === 'File').click()")
    page.wait("document.querySelector('#file input[type=file]')")
    file = tmp_path / "new.csv"
    file.write_text("text\n" + "".join(f'"{text}"\n' for text in TEXTS))
    page.upload("#file input[type=file]", file)
    page.wait("document.querySelector('#file').innerText.includes('new.csv')")
    page.click("button#predict-file")
    page.wait("document.querySelectorAll('#file-table table').length == 2")
    page.wait("document.querySelector('#made a')")
    links = json.loads(page.run("JSON.stringify([...document.querySelectorAll('#made a')].map(part => part.href))"))
    assert {Path(link).name for link in links} == {"predictions-1-mine.csv", "predictions-2-other.csv"}
    assert (page.dialogs, page.errors) == ([], [])
    assert only_own_host(page, served)


@pytest.mark.parametrize("kind", ["pair", "regression", "ordinal"])
def test_pages_of_other_runs(page: Page, tiny: Tiny, kind: str) -> None:
    with serving(ExplanationService([("mine", tiny_run(tiny(), kind))])) as found:
        page.open(found.url, READY)
        is_pair = kind == "pair"
        assert page.run("Boolean(document.querySelector('#pair textarea')?.offsetParent)") is is_pair
        assert page.run("Boolean(document.querySelector('#target input')?.offsetParent)") is (kind != "regression")
        if is_pair:
            page.fill("#pair textarea", TEXTS[3])
        ask(page, TEXT)
        shown = page.text("#result")
        assert ("score" in shown) is (kind == "regression")
        assert ("Nobody plays the guitar at 7:45." in shown) is is_pair
    assert page.errors == []


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 844)])
def test_nothing_is_wider_than_the_window(page: Page, served: Served, width: int, height: int) -> None:
    page.resize(width, height, phone=width < 500)
    try:
        page.open(served.url, READY)
        ask(page, f"{TEXT} {'x' * 300} {TEXTS[4]}")
        page.fill("#slider input[type=range]", 2)
        page.wait("document.querySelector('#masked .att')")
        assert page.run("document.documentElement.scrollWidth") <= width
    finally:
        page.send("Emulation.clearDeviceMetricsOverride")


def test_another_site_cannot_read_the_page(page: Page, served: Served) -> None:
    """A page of another origin, as a site that the user visits would be: its requests are refused."""
    page.open(served.url + "favicon.ico", "document.readyState === 'complete'")
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>other</title>")

        def log_message(self, *_: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        page.open(f"http://127.0.0.1:{other.server_port}/", "document.title === 'other'")
        answer = page.run(
            f"fetch('{served.url}gradio_api/queue/join', {{method: 'POST', body: '{{}}'}})"
            ".then(answer => answer.status).catch(error => 'refused')"
        )
        assert answer == "refused"
        assert page.run(
            f"fetch('{served.url}config').then(answer => answer.text()).catch(error => 'refused')"
        ) == "refused"  # fmt: skip
    finally:
        other.shutdown()
        other.server_close()
        page.errors.clear()
