"""The page of a report in a real browser: what a person sees, with or without a screen reader."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from attentune.cli.main import main
from attentune.report.contents import make_report
from attentune.report.load import TaskTexts, collect
from attentune.report.writing import write_report
from helpers import browser
from helpers.browser import Page, browser_page
from helpers.made_records import write_comparison

pytestmark = pytest.mark.slow  # Chromium is needed

ROOT = Path(__file__).parents[2]
WIDTHS = (390, 768, 1280)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("browser")) as found:
        # As if the window had the focus of the desktop.
        found.send("Emulation.setFocusEmulationEnabled", enabled=True)
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages: the large comparison, one of few methods with token labels, and one run with texts."""
    folder = tmp_path_factory.mktemp("pages")
    assert (
        main(["report", str(ROOT / "results/matrix"), "--no_texts", "--output_file", str(folder / "large.html")]) == 0
    )
    chances = {"bert": 0.6, "good": 0.85, "same": 0.6}
    write_comparison(folder / "few", chances, tasks=("rte", "sst2"), labelled=("good",))
    write_report(make_report(collect([str(folder / "few")])), folder / "few.html")
    write_comparison(folder / "one", {"bert": 0.7}, seeds=1)
    texts = TaskTexts({f"r{number}": ("some " * (1 + number % 30), None) for number in range(200)})
    data = collect([str(folder / "one")])
    data.texts["rte"] = texts  # type: ignore[index]
    write_report(make_report(data), folder / "one.html")
    return {name: folder / f"{name}.html" for name in ("large", "few", "one")}


def show(page: Page, file: Path, *, width: int = 1280, dark: bool = False, media: str = "") -> None:
    page.resize(width, 900)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    page.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
    page.requests.clear()
    page.open(file.as_uri())


def problems(page: Page) -> list[str]:
    """Return what axe-core finds that is serious or critical, in the folded parts too."""
    page.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    return browser.problems(page)


@pytest.mark.parametrize("name", ["large", "few", "one"])
def test_axe_finds_nothing_serious(page: Page, files: dict[str, Path], name: str) -> None:
    for width, dark in ((1280, False), (1280, True), (390, False)):
        show(page, files[name], width=width, dark=dark)
        assert problems(page) == []


def test_axe_finds_what_is_wrong(page: Page, files: dict[str, Path]) -> None:
    show(page, files["few"])
    page.run("document.querySelector('.answer').style.color = '#eeeeee'")
    (problem,) = problems(page)
    assert problem.startswith("color-contrast: ")


@pytest.mark.parametrize("name", ["large", "few", "one"])
def test_nothing_is_cut_off_at_any_width(page: Page, files: dict[str, Path], name: str) -> None:
    for width in WIDTHS:
        show(page, files[name], width=width)
        assert page.run("document.documentElement.scrollWidth") <= width
        # Tables and figures are in regions that scroll.
        outside = page.run(
            "[...document.querySelectorAll('table, svg, p, h1, h2')].filter(part => { const box ="
            " part.getBoundingClientRect(); return !part.closest('.scroll, .wide') &&"
            " box.width && (box.right > innerWidth + 1 || box.left < -4); }).map(part => part.outerHTML.slice(0, 120))"
        )
        assert outside == []
    assert page.errors == []
    assert page.requests == [files[name].as_uri()]


def test_the_first_screen_has_question_answer_and_scores(page: Page, files: dict[str, Path]) -> None:
    show(page, files["large"])
    assert page.text("h1") == "Which of 12 models is best for 6 tasks?"
    assert page.text(".answer").startswith("Nothing was learnt in 36 of 360 runs")
    assert page.run("document.querySelectorAll('#result table')[0].tBodies[0].rows.length") == 12
    assert page.run("document.querySelector('#result tbody tr').getBoundingClientRect().bottom") < 900


def test_the_large_page_is_small_enough_to_send(files: dict[str, Path]) -> None:
    assert files["large"].stat().st_size < 1_000_000


def test_a_run_shows_curves_and_errors(page: Page, files: dict[str, Path]) -> None:
    show(page, files["one"])
    text = page.text("body")
    for part in ("How good is bert for rte?", "training loss", "Confident errors", "Classes"):
        assert part in text


def test_print_has_no_controls_and_fits_the_paper(page: Page, files: dict[str, Path]) -> None:
    show(page, files["large"], width=720, media="print")
    try:
        assert page.run("document.documentElement.scrollWidth") <= 720
        assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        page.send("Emulation.setEmulatedMedia", media="", features=[])
