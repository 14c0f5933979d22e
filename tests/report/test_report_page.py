"""The page of a report in a real browser: what a person sees, with a mouse, a keyboard or a screen reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attentune.cli.main import main
from attentune.data.doctor_report import Finding
from attentune.report.load import TaskTexts, collect
from attentune.report.sections.contents import make_report
from attentune.report.writing import write_report
from helpers import axe
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
    """The pages: the large comparison, one of few methods with token labels, and one run with texts and findings."""
    folder = tmp_path_factory.mktemp("pages")
    assert (
        main(["report", str(ROOT / "results/matrix"), "--no_texts", "--output_file", str(folder / "large.html")]) == 0
    )
    chances = {"bert": 0.6, "good": 0.85, "same": 0.6}
    write_comparison(folder / "few", chances, tasks=("rte", "sst2"), labelled=("good",))
    write_report(make_report(collect([str(folder / "few")])), folder / "few.html")
    write_comparison(folder / "one", {"bert": 0.7}, seeds=1)
    findings = (
        Finding("warning", "leak", "train", "train: leaks.", "Remove."),
        Finding("note", "x", "dev", "Few.", "-"),
    )
    texts = TaskTexts({f"r{number}": ("some " * (1 + number % 30), None) for number in range(200)}, findings)
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
    return axe.problems(page)


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
        # The first table, and each one below that is not in a region that scrolls.
        outside = page.run(
            "[...document.querySelectorAll('table, svg, p, h1, h2')].filter(part => { const box ="
            " part.getBoundingClientRect(); return !part.closest('.tip, .scroll, .wide[role], .matrices > div') &&"
            " box.width && (box.right > innerWidth + 1 || box.left < -4); }).map(part => part.outerHTML.slice(0, 120))"
        )
        assert outside == []
    assert page.errors == []
    assert page.requests == [files[name].as_uri()]


def test_the_first_screen_has_question_answer_and_heat_map(page: Page, files: dict[str, Path]) -> None:
    show(page, files["large"])
    assert page.text("h1") == "Is any of 11 methods better than bert on 6 tasks?"
    assert page.text(".answer").startswith(
        "No method is shown to be better, and task-attention is worse on stsb by 49.9"
    )
    assert page.run("document.querySelectorAll('.heat tbody:first-of-type td').length") == 12 * 6
    assert page.run("[...document.querySelectorAll('.heat .shown')].map(cell => cell.firstChild.data)") == ["−49.9 ↓"]
    assert page.run("document.querySelector('.heat .floor').getBoundingClientRect().bottom") < 900


def test_the_large_page_is_small_enough_to_send(files: dict[str, Path]) -> None:
    assert files["large"].stat().st_size < 1_000_000


@pytest.mark.parametrize("width", [390, 1280])
def test_intervals_are_reached_by_keyboard(page: Page, files: dict[str, Path], width: int) -> None:
    show(page, files["large"], width=width)
    shown = (
        "(tip => { const box = tip.getBoundingClientRect(); return getComputedStyle(tip).clipPath === 'none' &&"
        " box.width > 150 && box.left >= 0 && box.right <= innerWidth; })"
    )
    tip = "document.activeElement.querySelector('.tip')"
    for _ in range(8):
        for kind in ("rawKeyDown", "keyUp"):
            page.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    # The link to the details, six cells of the baseline, and the first of the first method.
    assert page.run(f"{tip}.textContent").startswith(
        "bert - fresh pooler on cola: Matthews correlation 11.5 (95 % CI 8.1"
    )
    assert page.run(f"{shown}({tip})")
    assert not page.run(f"{shown}(document.querySelector('.heat .shown .tip'))")


def test_comparisons_are_sorted_by_a_click(page: Page, files: dict[str, Path]) -> None:
    show(page, files["large"])
    column = "[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[5].textContent)"
    before = page.run(column)
    page.click(".sortable thead th:nth-child(6) button")
    after = page.run(column)
    assert sorted(before) == sorted(after)
    numbers = [float(text.replace("−", "-")) for text in after]
    assert numbers == sorted(numbers)
    assert page.run("document.querySelector('.sortable [aria-sort]').textContent") == "difference"
    assert page.run("document.querySelector('.sortable [aria-sort]').getAttribute('aria-sort')") == "ascending"
    page.click(".sortable thead th:nth-child(6) button")
    assert page.run(column)[0] == "+3.4"
    page.click(".sortable thead th:nth-child(2) button")
    names = page.run("[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[1].textContent)")
    assert names[0].startswith("bert")
    assert names[-1] == "task-attention"


def test_the_page_can_be_read_without_script(page: Page, files: dict[str, Path]) -> None:
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        show(page, files["large"])
        text = page.text("main")
        assert page.run("document.querySelectorAll('.sortable button').length") == 0
    finally:
        page.send("Emulation.setScriptExecutionDisabled", value=False)
    assert text.count("not shown") == 65
    assert "All comparisons" in text


def test_a_run_shows_curves_findings_and_errors(page: Page, files: dict[str, Path]) -> None:
    show(page, files["one"])
    text = page.text("body")
    for part in ("How good is bert on rte?", "Training loss", "Errors by length", "By class", "train: leaks. Remove."):
        assert part in text


def test_print_has_no_controls_and_fits_the_paper(page: Page, files: dict[str, Path]) -> None:
    show(page, files["large"], width=720, media="print")
    try:
        assert page.run("document.documentElement.scrollWidth") <= 720
        assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        page.send("Emulation.setEmulatedMedia", media="", features=[])
