"""The page in a real browser: what a person sees and does."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from attentune.data.tables import visible
from attentune.explain.explainer import answer_masked
from attentune.explain.explanation import Explanation
from attentune.explain.texts import explain_texts
from attentune.inference.predictor import Predictor, predict
from attentune.report.explanations import effect_text, strongest
from attentune.serving.limits import ServerLimits
from helpers.browser import Page, browser_page, problems
from helpers.hostile_texts import HOSTILE
from helpers.served import Served, serving
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, tiny_run

pytestmark = pytest.mark.slow  # Chromium is needed

Tiny = Callable[..., Path]
TEXT = TEXTS[0]
READY = "document.querySelector('#why [data-word]')"
KEY = "0123456789abcdef"
LIMITS = ServerLimits(characters=50_000, rows=50, body_mb=2)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def served(tiny: Tiny, page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    file = tmp_path_factory.mktemp("run") / "dev.csv"
    file.write_text(f'id,text,label\na,too short,good\n1,"{TEXT}",bad\n2,"{TEXT}",good\n')
    run = tiny_run(tiny())
    with serving(with_validation_file(run, file), limits=LIMITS) as found:
        yield found


def with_validation_file(run: Predictor, file: Path) -> Predictor:
    """The run, as if it had been trained with this validation file."""
    return replace(run, config=replace(run.config, data=replace(run.config.data, validation_file=str(file))))


def _scheme(dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}


@pytest.fixture(autouse=True)
def usual_window(page: Page) -> Iterator[None]:
    """Restore the window after a test that changes it."""
    yield
    page.send("Emulation.setEmulatedMedia", features=[_scheme(False)])
    page.resize(1280, 900)
    page.errors.clear()


def press(page: Page, *keys: str) -> None:
    """Press keys as a person does, in whatever has the focus."""
    codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}
    for key in keys:
        for kind in ("rawKeyDown", "keyUp"):
            page.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])


def figures(page: Page) -> list[str]:
    return page.run("[...document.querySelectorAll('.figure')].map(one => one.innerText.replace(/\\s+/g, ' '))")


def ask(page: Page, text: str) -> None:
    """Type a text, press the button and wait for an answer that was not there before."""
    page.run(
        "document.querySelector('#why').replaceChildren(); document.querySelector('#ask-problem').textContent = ''"
    )
    page.fill("#text", text)
    page.click("#ask button")
    page.wait("document.querySelector('#why h2') || document.querySelector('#ask-problem').textContent")


def mask_first(page: Page) -> None:
    page.click("#why [data-word]")
    page.wait("document.querySelector('.was')")


def only_own_host(page: Page, served: Served) -> bool:
    """Whether the page asked for nothing but what its own server has."""
    own = urlsplit(served.url).netloc
    return {urlsplit(url).netloc for url in page.requests if not url.startswith(("data:", "blob:"))} == {own}


def test_type_a_text_and_see_what_the_run_says(page: Page, served: Served) -> None:
    page.requests.clear()
    page.open(served.url, READY)
    assert page.run("document.title") == "Attentune: mine"
    assert page.text("h1") == "This model sorts a text into bad or good."
    assert page.text("#about") == "An example: row 1 of the validation rows, labelled bad. Type your own."
    ask(page, f"{TEXT} 😀 again")
    (answer,), (why,) = predict(served.run, [f"{TEXT} 😀 again"]), explain_texts(served.run, [f"{TEXT} 😀 again"])
    shares = answer["probabilities"]
    assert figures(page) == [f"{share:.1%}" for share in shares.values()]
    assert page.text(".said") == f"{answer['prediction']} ({shares[answer['prediction']]:.1%})"
    assert page.text(".marked") == f"{TEXT} 😀 again"
    assert page.text("#about") == ""
    assert_painted(page, why)
    assert page.text("#effect") == effect_text(why)
    assert page.text("#why td") == strongest(why)[0][0]
    assert (page.dialogs, page.errors) == ([], [])
    assert only_own_host(page, served)


def assert_painted(page: Page, why: Explanation) -> None:
    """The words are buttons with their scores; those with at least 30 % of the strongest one's are painted."""
    found = page.run(
        "[...document.querySelectorAll('#why .t')].map(one => [one.textContent, one.title, one.className])"
    )
    most = max(abs(word.score) for word in why.words)
    for (text, score, kind), word in zip(found, why.words, strict=True):
        assert text == word.text
        assert float(score) == pytest.approx(word.score, rel=0.01, abs=1e-4)
        expected = "t for" if word.score > 0 else "t against"
        assert kind == (expected if abs(word.score) >= 0.3 * most else "t")
    legend = page.text("#legend")
    assert why.unit in legend
    assert f"red: for {why.label}; blue, dashed: against it; words below 30% of the strongest" in legend


def test_a_click_on_a_word_shows_what_changes_without_it(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, TEXT)
    before = figures(page)
    words = explain_texts(served.run, [TEXT], method="ssa")[0].words
    place = [word.text for word in words].index("unwatchable")

    def expected(*chosen: int) -> list[str]:
        was, now, _ = answer_masked(served.run, rows_of([TEXT]), [words[one] for one in chosen])
        shares = zip(now["probabilities"].values(), was["probabilities"].values(), strict=True)
        return [f"{after:.1%} {100 * (after - was):+.1f}" for after, was in shares]

    name = f"text:{words[place].start}:{words[place].end}"
    page.click(f"[data-word='{name}']")
    page.wait("document.querySelector('.was')")
    assert figures(page) == expected(place)
    assert page.run(f"document.querySelector(\"[data-word='{name}']\").ariaPressed") == "true"
    assert page.text("#masked") == "Masked: “unwatchable”"
    # Another one; then back, one by one.
    page.click("[data-word='text:4:10']")
    page.wait(f"document.querySelector('.figure').innerText.startsWith('{expected(1, place)[0].split()[0]}')")
    assert page.text("#masked") == "Masked: “unwatchable”, “actors”"
    assert figures(page) == expected(1, place)
    page.click("#undo")
    page.wait(f"document.querySelector('.figure').innerText.startsWith('{expected(place)[0].split()[0]}')")
    page.click("#reset")
    page.wait("!document.querySelector('.was')")
    assert figures(page) == before
    assert page.run("document.querySelectorAll('[aria-pressed=true]').length") == 0
    assert not page.run("document.querySelector('#undo').checkVisibility()")
    assert (page.dialogs, page.errors) == ([], [])


def test_words_are_masked_by_keyboard(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, TEXT)
    focused = "document.activeElement.dataset.word"
    page.run("document.querySelector('#ask button').focus()")
    press(page, "Tab")
    assert page.run(focused) == "text:0:3"  # one stop for the whole text
    press(page, "ArrowRight", "ArrowRight", "ArrowLeft", "Enter")
    page.wait("document.querySelector('.was')")
    assert page.text("#masked") == "Masked: “actors”"
    assert page.run(focused) == "text:4:10"  # the focus stays where it was
    press(page, "End", " ")
    page.wait("document.querySelector('#masked').innerText === 'Masked: “actors”, “!”'")
    press(page, "Escape")
    page.wait("!document.querySelector('.was')")
    press(page, "Tab")
    assert page.run("document.activeElement.ariaLabel") == "The strongest words"  # a table that scrolls
    press(page, "Tab")
    assert page.run("document.activeElement.tagName") == "SUMMARY"
    assert page.errors == []


def test_a_click_on_a_wrong_row_explains_it(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    ask(page, "so fine")
    page.click("#errors summary")
    page.wait("document.querySelector('#errors-table table')")
    assert "of 3 validation rows" in page.text("#errors-table")
    texts = page.run("[...document.querySelectorAll('#errors-table button')].map(one => one.innerText)")
    page.run(f"document.querySelectorAll('#errors-table button')[{texts.index(TEXT)}].click()")
    page.wait(f"document.querySelector('.marked').innerText === {json.dumps(TEXT)}")
    assert page.run("document.querySelector('#text').value") == TEXT
    assert (page.dialogs, page.errors) == ([], [])


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_axe_finds_nothing_serious(page: Page, served: Served, tmp_path: Path, width: int, dark: bool) -> None:
    page.send("Emulation.setEmulatedMedia", features=[_scheme(dark)])
    page.resize(width, 900)
    page.open(served.url, READY)
    mask_first(page)
    page.click("#errors summary")
    page.click("#file summary")
    upload(page, tmp_path)
    page.wait("document.querySelector('#errors-table table') && document.querySelector('#file-table table')")
    assert problems(page) == []
    ask(page, " ")
    page.wait("document.querySelector('#ask-problem').textContent")
    assert problems(page) == []


def upload(page: Page, folder: Path, content: str | None = None) -> None:
    file = folder / "new.csv"
    file.write_text(content or "text\n" + "".join(f'"{text}"\n' for text in TEXTS))
    page.upload("#upload", file)
    page.click("#file-form button")


def test_hostile_texts_do_nothing(page: Page, served: Served) -> None:
    page.open(served.url, READY)
    for number, text in enumerate(HOSTILE):
        ask(page, text)
        if number % 10 == 0 and page.run(f"Boolean({READY})"):
            mask_first(page)
        if not page.text("#ask-problem"):
            # A text field turns a carriage return into a line feed.
            assert page.run("document.querySelector('.marked').textContent") == visible(text)
        found = page.run(
            "[...document.querySelectorAll('#result *')].filter(part =>"
            " !/^(div|h2|p|strong|span|bdi|br|button|table|thead|tbody|tr|th|td)$/i.test(part.tagName))"
            ".map(part => part.outerHTML)"
        )
        assert found == [], text
        assert page.run("document.title") == "Attentune: mine"
    assert page.dialogs == []
    assert [error for error in page.errors if "422" not in error] == []
    assert only_own_host(page, served)


def test_mistakes_are_said_beside_the_field(page: Page, served: Served, tmp_path: Path) -> None:
    page.open(served.url, READY)
    ask(page, " ")
    assert page.text("#ask-problem") == "There is no text yet. Type or paste one, then try again."
    ask(page, "word " * 200_000)
    assert page.text("#ask-problem").startswith(
        "texts[0] has 1,000,000 characters; this server accepts at most 50,000."
    )
    ask(page, "word " * 200)
    assert (page.text("#ask-problem"), page.run(f"Boolean({READY})")) == ("", True)
    page.run("document.querySelector('#method').append(new Option('fast-shap'))")
    page.fill("#method", "fast-shap")
    page.wait("document.querySelector('#ask-problem').textContent.includes('fast-shap')")
    assert len(figures(page)) == 2  # the prediction is there
    page.click("#file summary")
    page.click("#file-form button")
    page.wait("document.querySelector('#file-problem').textContent")
    assert page.text("#file-problem") == "There is no file yet. Choose one, then try again."
    for content, message in (("text\n" + "x\n" * 51, "has 51 rows"), ("x" * 3 * 2**20, "The file has 3.0 MB;")):
        upload(page, tmp_path, content)
        page.wait(f"document.querySelector('#file-problem').textContent.includes('{message}')")
    assert page.dialogs == []


def test_methods_pieces_and_files(page: Page, served: Served, tmp_path: Path) -> None:
    page.open(served.url, READY)
    ask(page, TEXT)
    page.fill("#method", "ssa")  # explained again without a press of the button
    page.wait("document.querySelector('#why h2')?.innerText === 'ssa' && document.querySelector('.ramp.plain')")
    words = page.run("document.querySelectorAll('.t').length")
    page.fill("#level", "token")
    page.wait(f"document.querySelectorAll('.t').length > {words}")
    page.click("#file summary")
    upload(page, tmp_path)
    page.wait("document.querySelector('#file-table table')")
    assert page.run("document.querySelectorAll('#file-table tbody tr').length") == len(TEXTS)
    saved = page.run("fetch(document.querySelector('#file-table a').href).then(one => 0).catch(() => 'by the policy')")
    assert saved == "by the policy"  # scripts cannot read it; a click saves it
    assert page.run("document.querySelector('#file-table a').download") == "predictions.csv"
    upload(page, tmp_path, f'text,label\n"{TEXT}",bad\n"{TEXT}",good\n')
    page.wait("document.querySelector('#file-table').innerText.includes('1 of 2 rows of the file is wrong')")
    assert page.dialogs == []
    assert only_own_host(page, served)


@pytest.mark.parametrize("kind", ["pair", "regression", "ordinal"])
def test_pages_of_other_runs(page: Page, tiny: Tiny, kind: str) -> None:
    with serving(tiny_run(tiny(), kind)) as found:
        page.open(found.url, READY)
        if kind == "pair":
            page.fill("#pair", TEXTS[3])
        ask(page, TEXT)
        assert page.text(".said").startswith("score ") == (kind == "regression")
        assert (TEXTS[3] in page.text("#why")) is (kind == "pair")
        if kind == "pair":
            page.click("[data-word^='pair:']")
            page.wait("document.querySelector('.was')")
            assert page.text("#masked") == "Masked: “Nobody”"
    assert page.errors == []


def test_a_key_is_asked_for_first(page: Page, tiny: Tiny) -> None:
    with serving(tiny_run(tiny()), api_key=KEY) as found:
        page.open(found.url, "document.querySelector('#key')")
        page.fill("#key", "wrong")
        page.click("#key-form button")
        page.wait("document.querySelector('#key-problem').textContent.startsWith('The API key is wrong.')")
        page.fill("#key", KEY)
        page.click("#key-form button")
        page.wait(READY)
        assert not page.run("document.querySelector('#key-form').checkVisibility()")


@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 844)])
def test_nothing_is_wider_than_the_window(page: Page, served: Served, width: int, height: int) -> None:
    page.resize(width, height, phone=width < 500)
    page.open(served.url, READY)
    ask(page, f"{TEXT} {'x' * 300} {TEXTS[4]}")
    mask_first(page)
    page.click("#errors summary")
    page.wait("document.querySelector('#errors-table table')")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_another_site_cannot_use_the_server(page: Page, served: Served) -> None:
    """A page of another origin, as a site that the user visits would be: its requests are refused."""

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
        for path, options in (("predict", "{method: 'POST', body: '{}'}"), ("example", "{}")):
            asked = f"fetch('{served.url}{path}', {options}).then(one => one.text()).catch(() => 'refused')"
            assert page.run(asked) == "refused"
    finally:
        other.shutdown()
        other.server_close()
        page.errors.clear()
