"""The page in a real browser: what a person sees and does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from attentune.app.limits import RequestLimits
from attentune.app.service import ExplanationService
from attentune.cli.report import write_page
from attentune.explain.answers import answer_masked, words_read
from attentune.inference.predictor import Predictor, predict
from helpers.app_server import Served, serving
from helpers.axe import problems
from helpers.browser import Page, browser_page
from helpers.explain_runs import TEXTS, tiny_run
from helpers.hostile_texts import HOSTILE
from helpers.tiny_models import rows_of

pytestmark = pytest.mark.slow  # Chromium is needed

Tiny = Callable[..., Path]
READY = "document.querySelector('#text textarea') && document.querySelector('#result .att')"
BOXES = "document.querySelectorAll('#result .att-box').length"
TEXT = TEXTS[0]
RECORDED = Path(__file__).parents[1] / "data_samples" / "run"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def served(tiny: Tiny, page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    runs = [("mine", tiny_run(tiny())), ("other", tiny_run(tiny(), gate=False))]
    folder = tmp_path_factory.mktemp("run")
    rows = [
        ("id", "text", "label"),
        ("a", "too short", "good"),
        *((str(n), TEXT, ["bad", "good"][n % 2]) for n in (1, 2)),
    ]
    (folder / "dev.csv").write_text("\n".join(f'{one},"{text}",{label}' for one, text, label in rows))
    runs = [(name, with_validation_file(run, folder / "dev.csv")) for name, run in runs]
    service = ExplanationService(runs, limits=RequestLimits(characters=50_000, rows=50))
    with serving(service, build_report=lambda file: write_page([str(RECORDED)], file)) as found:
        yield found


def with_validation_file(run: Predictor, file: Path) -> Predictor:
    """The run, as if it had been trained with this validation file."""
    return replace(run, config=replace(run.config, data=replace(run.config.data, validation_file=str(file))))


def show(page: Page, served: Served, *, width: int = 1280, dark: bool = False) -> None:
    page.send("Emulation.setEmulatedMedia", features=[_scheme(dark)])
    page.resize(width, 900)
    page.open(served.url, READY)


def _scheme(dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}


@pytest.fixture(autouse=True)
def usual_window(page: Page) -> Iterator[None]:
    """Restore the window after a test that changes it."""
    yield
    page.send("Emulation.setEmulatedMedia", features=[_scheme(False)])
    page.resize(1280, 900)
    page.errors.clear()


def show_tab(page: Page, name: str) -> None:
    page.run(f"[...document.querySelectorAll('[role=tab]')].find(one => one.innerText.trim() === '{name}').click()")


def press(page: Page, *keys: str) -> None:
    """Press keys as a person does, in whatever has the focus."""
    codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
    for key in keys:
        for kind in ("rawKeyDown", "keyUp"):
            page.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])


def figures(page: Page, run: int) -> list[str]:
    """The figures beside the bars of a run."""
    return page.run(
        f"[...document.querySelectorAll('#result .att-box')[{run}].querySelectorAll('.figure')]"
        ".map(one => one.innerText.replace(/\\s+/g, ' '))"
    )


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
    # Nothing: and the page says so.
    ask(page, "")
    assert page.text("#result").strip() == "There is no text yet. Type or paste one, then try again."
    assert page.text("#about").strip() == ""  # it is no longer the example
    # A hostile text.
    ask(page, "<img src=x onerror=alert(1)>{{7*7}}${7*7}")
    assert "<img src=x onerror=alert(1)>{{7*7}}${7*7}" in page.text("#result")
    assert page.run("document.querySelectorAll('#result img, #result script').length") == 0
    assert (page.dialogs, page.errors) == ([], [])
    assert only_own_host(page, served)


def test_an_example_is_explained_on_arrival(page: Page, served: Served) -> None:
    show(page, served)
    assert page.run("document.querySelector('#text textarea').value") == TEXT
    assert page.text("#about") == "An example: row 1 of the validation rows, labelled good. Type your own."
    assert page.run(BOXES) == 2
    assert page.text("h1") == "mine and other"
    # The first run scores tokens, so it shows ssa beside the faithful method.
    methods = page.run("[...document.querySelectorAll('#result h3')].map(one => one.innerText)")
    assert methods == ["leave-one-out", "ssa", "leave-one-out"]
    assert "Agreement of leave-one-out and ssa: " in page.text("#result .att-box")
    # Bars of the same class, and the explanations, are at the same height in both boxes, with the same scale: also if
    # the name of one run takes several lines.
    page.run("document.querySelector('#result h2').textContent = 'a long name '.repeat(30)")
    for selector in (".track", ".att-whys", "h2"):
        places = page.run(
            "[...document.querySelectorAll('#result .att-box')].map(box => [...box.querySelectorAll('"
            + selector
            + "')]"
            ".map(one => { const at = one.getBoundingClientRect(); return [at.top, at.height && at.width]; }))"
        )
        assert places[0] == places[1], selector
    assert (page.dialogs, page.errors) == ([], [])


def test_a_click_on_a_word_shows_what_changes_without_it(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, TEXT)
    before = figures(page, 0)
    words = words_read(served.service.runs[0][1], rows_of([TEXT]))
    place = [word.text for word in words].index("unwatchable")

    def expected(*chosen: int) -> list[list[str]]:
        shown = []
        for _, run in served.service.runs:
            found = answer_masked(run, rows_of([TEXT]), [words[one] for one in chosen])
            shares = zip(found.after.probabilities.values(), found.before.probabilities.values(), strict=True)
            shown.append([f"{after:.1%} {100 * (after - was):+.1f}" for after, was in shares])
        return shown

    name = f"text:{words[place].start}:{words[place].end}"
    page.click(f"#result [data-word='{name}']")
    page.wait("document.querySelector('#result .was')")
    assert [figures(page, 0), figures(page, 1)] == expected(place)
    # The word is marked in all texts, and named.
    assert page.run(
        f"[...document.querySelectorAll('#result [data-word=\"{name}\"]')].map(one => one.ariaPressed)"
    ) == (["true"] * 3)
    assert page.text(".att-masked") == "Masked: “unwatchable”"
    # Another one; then back, one by one.
    page.click("#result [data-word='text:4:10']")
    page.wait("document.querySelector('.att-masked').innerText.includes('actors')")
    page.wait(
        f"document.querySelector('#result .figure').innerText.startsWith('{expected(1, place)[0][0].split()[0]}')"
    )
    assert figures(page, 1) == expected(1, place)[1]
    page.click("[data-do=undo]")
    page.wait("!document.querySelector('.att-masked').innerText.includes('actors')")
    page.wait(f"document.querySelector('#result .figure').innerText.startsWith('{expected(place)[0][0].split()[0]}')")
    page.click("[data-do=reset]")
    page.wait("!document.querySelector('#result .was')")
    assert figures(page, 0) == before
    assert page.run("document.querySelectorAll('#result [aria-pressed=true]').length") == 0
    assert not page.run("document.querySelector('[data-do=undo]').checkVisibility()")
    assert (page.dialogs, page.errors) == ([], [])
    assert only_own_host(page, served)


def test_words_are_masked_by_keyboard(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, TEXT)
    focused = "document.activeElement.dataset.word"
    page.run("document.querySelector('button#explain').focus()")
    press(page, "Tab")
    assert page.run(focused) == "text:0:3"  # one stop for the whole text
    press(page, "ArrowRight", "ArrowRight", "ArrowLeft", "Enter")
    assert page.run(focused) == "text:4:10"
    page.wait("document.querySelector('#result .was')")
    assert page.text(".att-masked") == "Masked: “actors”"
    assert page.run(focused) == "text:4:10"  # the focus stays where it was
    press(page, "End", " ")
    page.wait("document.querySelector('.att-masked').innerText === 'Masked: “actors”, “!”'")
    press(page, "Escape")
    page.wait("!document.querySelector('#result .was')")
    press(page, "Tab")
    assert page.run(focused) == "text:0:3"  # that of the next text
    assert page.run("document.activeElement.closest('.att-why').querySelector('h3').innerText") == "ssa"
    assert page.errors == []


def test_a_click_on_an_error_explains_it(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, "so fine")
    show_tab(page, "Errors")
    page.wait("document.querySelector('#errors table')")
    assert page.run("document.querySelectorAll('#errors table').length") == 1  # of both runs
    assert "Wrong by both" in page.text("#errors")
    assert "Wrong by other only" in page.text("#errors")
    texts = page.run("[...document.querySelectorAll('#errors button')].map(one => one.innerText)")
    place = texts.index(TEXT)
    page.run(f"document.querySelectorAll('#errors button')[{place}].click()")
    page.wait(f"document.querySelector('#result .marked').innerText === {json.dumps(TEXT)}")
    assert page.run("document.querySelector('#text textarea').value") == TEXT
    assert page.run("document.querySelector('[role=tab][aria-selected=true]').innerText") == "Text"
    assert page.run("document.querySelector('#result').checkVisibility()")
    assert (page.dialogs, page.errors) == ([], [])


def test_the_report_is_in_a_frame_of_its_own(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    show_tab(page, "Report")
    page.wait("document.querySelector('#report iframe')")
    loaded = (
        "performance.getEntriesByType('resource').filter(one => one.initiatorType === 'iframe').map(one => one.name)"
    )
    page.wait(f"{loaded}.length")
    assert page.run(loaded) == [f"{served.url}report"]
    assert page.run("document.querySelector('#report iframe').getBoundingClientRect().height") > 400
    assert page.run("document.querySelector('#report iframe').contentDocument") is None  # it is of another origin
    assert page.run("fetch('report').then(answer => answer.text())").startswith("<!DOCTYPE html>")
    assert page.errors == []


# Gradio's field for files names itself by other words than it shows.
_GRADIO = ("label-content-name-mismatch",)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_axe_finds_nothing_serious(page: Page, served: Served, width: int, dark: bool) -> None:
    show(page, served, width=width, dark=dark)
    page.click("#result [data-word]")
    page.wait("document.querySelector('#result .was')")
    for tab, ready in (("Text", "#result"), ("Errors", "#errors table"), ("File", "#file"), ("Report", "iframe")):
        show_tab(page, tab)
        page.wait(f"document.querySelector('{ready}') && !document.querySelector('.pending')")
        page.wait("document.getAnimations().every(one => one.playState === 'finished')")
        assert problems(page, ignored=_GRADIO, frames=False) == []


def test_hostile_texts_do_nothing(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    for number, text in enumerate(HOSTILE):
        ask(page, text)
        if number % 10 == 0 and page.run("document.querySelector('#result [data-word]')") is not None:
            page.click("#result [data-word]")
            page.wait("document.querySelector('#result .was')")
        found = page.run(
            "[...document.querySelectorAll('#result .att *')].filter(part =>"
            " !/^(div|section|h2|h3|p|strong|span|bdi|br|button)$/i.test(part.tagName))"
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
    # Another method, chosen in the list: explained again without a press of the button.
    page.click("#method input")
    page.run("document.querySelector('#method input').dispatchEvent(new FocusEvent('focus'))")
    page.wait("document.querySelector('[role=option]')")
    page.run(
        "[...document.querySelectorAll('[role=option]')].find(part => part.innerText.trim().endsWith('ssa'))"
        ".dispatchEvent(new MouseEvent('mousedown', {bubbles: true}))"
    )
    page.wait("document.querySelector('#result').innerText.includes('ssa needs a model that scores tokens')")
    words = page.run("document.querySelectorAll('#result .t').length")
    page.click("#level label:nth-of-type(2) input")
    page.wait(f"document.querySelectorAll('#result .t').length > {words}")
    page.click("#heads button")
    page.wait("document.querySelector('button#show-heads').offsetParent")
    page.click("button#show-heads")
    page.wait("document.querySelectorAll('#head-table table').length == 2")
    # A file goes up, and comes back with predictions.
    show_tab(page, "File")
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
        # ssa stands beside the other method, in half of the box each.
        places = page.run(
            "[...document.querySelectorAll('.att-why')].map(one => one.getBoundingClientRect())"
            ".map(one => [one.top, one.width / document.querySelector('.att-whys').clientWidth])"
        )
        assert [place[0] for place in places] == [places[0][0]] * 2
        assert all(share > 0.45 for _, share in places)
        assert ("Nobody plays the guitar at 7:45." in shown) is is_pair
    assert page.errors == []


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 844)])
def test_nothing_is_wider_than_the_window(page: Page, served: Served, width: int, height: int) -> None:
    page.resize(width, height, phone=width < 500)
    page.open(served.url, READY)
    ask(page, f"{TEXT} {'x' * 300} {TEXTS[4]}")
    page.click("#result [data-word]")
    page.wait("document.querySelector('#result .was')")
    assert page.run("document.documentElement.scrollWidth") <= width
    show_tab(page, "Errors")
    page.wait("document.querySelector('#errors table')")
    assert page.run("document.documentElement.scrollWidth") <= width


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
