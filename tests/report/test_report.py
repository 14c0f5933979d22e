"""Reports: their tables and figures, escaping in every format, and identical files for identical records."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from attentune.errors import CheckpointError, ConfigError, StorageError
from attentune.report.charts import figure_bytes
from attentune.report.contents import loss_curve, make_report, mean_curve
from attentune.report.document import Figure, Report, Table
from attentune.report.load import collect
from attentune.report.writing import (
    escape_latex,
    escape_markdown,
    html_templates,
    render_html,
    render_latex,
    render_markdown,
    write_figures,
    write_report,
)
from attentune.runs.records import Run
from helpers.hostile_texts import HOSTILE
from helpers.made_records import write_comparison, write_record

CHANCES = {"bert": 0.6, "good": 0.85, "same": 0.6}
FEW = ("scores", "verdicts", "seeds-rte", "confusion-rte", "loss-rte")


def report_of(*folders: Path, baseline: str | None = None) -> Report:
    return make_report(collect([str(folder) for folder in folders]), baseline)


def figures_of(report: Report) -> dict[str, Figure]:
    return {figure.name: figure for figure in report.figures()}


def tables_of(report: Report) -> dict[str, Table]:
    return {part.name: part for section in report.sections for part in section.parts if isinstance(part, Table)}


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with data for every table and figure."""
    folder = tmp_path_factory.mktemp("rich")
    settings = {
        "ssa 0.2": {"preset": "ssa", "labels.ratio": 0.2},
        "ssa 1.0": {"preset": "ssa", "labels.ratio": 1.0},
        "bert": {"preset": "bert", "model.head.kind": "mean"},
    }
    chances = {"bert": 0.6, "ssa 0.2": 0.7, "ssa 1.0": 0.98}
    write_comparison(
        folder, chances, tasks=("rte", "sst2"), sizes=(250, 1000), settings=settings, labelled=("ssa 0.2", "ssa 1.0")
    )
    methods = {name: {"tasks": {"sst2": {}, "rte": {}}} for name in ("bert", "ssa 1.0", "ssa 0.2")}
    (folder / "compare.json").write_text(json.dumps({"format": 1, "id": "x", "methods": methods}))
    return folder


@pytest.fixture(scope="module")
def report(rich: Path) -> Report:
    return report_of(rich)


def test_a_rich_comparison_has_every_figure_and_table_once(report):
    assert list(figures_of(report)) == [
        *("seeds-sst2", "seeds-rte", "sizes-sst2", "sizes-rte", "confusion-sst2", "confusion-rte"),
        *("loss-sst2", "loss-rte"),
    ]
    assert list(tables_of(report)) == [
        *("scores", "baselines", "verdicts", "ranks", "apart-sst2", "apart-rte"),
        *("classes-sst2", "classes-rte", "cost", "methods", "common"),
    ]
    assert [section.title for section in report.sections[:3]] == ["Result", "Scores by seed", "Differences"]
    assert report.question == "Which of 3 models is best for 2 tasks, with 2 training set sizes?"
    # Methods and tasks come in the order of the comparison.
    found = tables_of(report)
    assert [row[0] for row in found["scores"].rows] == ["bert (baseline)", "ssa 1.0", "ssa 0.2"]
    assert found["scores"].header[1] == "sst2, 250 rows (accuracy)"
    assert ("labels.ratio", "1.0", "1.0", "0.2") in found["methods"].rows


def drawn_numbers(figure: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for axis in figure.axes for line in axis.get_lines()]


def test_figures_have_the_recorded_numbers(rich, report):
    figure = figures_of(report)["seeds-rte"].draw()
    score = 100 * json.loads((rich / "records/rte/1000/bert/seed-2.json").read_text())["score"]
    assert any(len(xs) == 3 and any(abs(x - score) < 1e-9 for x in xs) for xs, _ in drawn_numbers(figure))
    assert len({(axis.get_xlim(), axis.get_ylim()) for axis in figure.axes}) == 1


def test_what_has_no_data_is_left_out(tmp_path):
    write_comparison(tmp_path / "a", {"bert": 0.6}, seeds=1)
    found = report_of(tmp_path / "a")
    assert list(figures_of(found)) == ["confusion-rte", "loss-rte"]
    assert list(tables_of(found)) == ["baselines", "confident-rte", "classes-rte", "cost", "common"]
    record = write_record(tmp_path / "b", Run("rte", None, "bert", 1), None, score=None)
    failed = dataclasses.replace(
        record, status="failed", metric=None, scores={}, train={}, curve=[], error={"kind": "E", "message": "m\nn"}
    )
    (tmp_path / "b/records/rte/all/bert/seed-1.json").write_text(failed.to_json())
    found = report_of(tmp_path / "b")
    assert list(figures_of(found)) == []
    assert tables_of(found)["failed"].rows == (("rte", "all", "bert", "1", "E: m n"),)
    assert "0 trained models, 1 failed run" in found.sentences[0]


def test_the_scores_say_what_the_verdicts_show_and_folders_tell_methods_apart(tmp_path):
    write_comparison(tmp_path, CHANCES | {"bad": 0.2})
    tables = tables_of(report_of(tmp_path, baseline="bert"))
    rows = {row[0]: row[1] for row in tables["scores"].rows}
    assert re.fullmatch(r"\d\d\.\d \(\d\d\.\d to \d\d\.\d\) ↑", rows["good"])
    assert rows["bad"].endswith("↓ †")
    assert rows["bert (baseline)"][-1] == rows["same"][-1] == ")"
    assert [row[0] for row in tables["verdicts"].rows] == ["↓", "↑", "-"]
    assert tables["verdicts"].rows[1][1].startswith("good beats bert on rte by")
    assert "no better than a constant answer" in " ".join(tables["verdicts"].notes)
    # Methods of comparisons with the same runs get their folders name.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    write_comparison(tmp_path / "one", {"bert": 0.6, "good": 0.8})
    write_comparison(tmp_path / "two", {"bert": 0.7})
    write_comparison(tmp_path / "three", {"new": 0.7})
    found = tables_of(report_of(tmp_path / "one", tmp_path / "two"))
    assert [row[0] for row in found["scores"].rows] == ["bert in one (baseline)", "good in one", "bert in two"]
    found = tables_of(report_of(tmp_path / "one", tmp_path / "three"))
    assert [row[0] for row in found["scores"].rows] == ["bert (baseline)", "good", "new"]


def test_costs_are_medians_so_that_a_run_that_lay_still_does_not_count(tmp_path):
    write_comparison(tmp_path, {"bert": 0.6, "good": 0.8}, seeds=3)
    for seed, times in ((1, 2.0), (2, 2.0), (3, 500.0)):
        file = tmp_path / f"records/rte/all/good/seed-{seed}.json"
        content = json.loads(file.read_text())
        content["train"] |= {"seconds": times * content["train"]["seconds"], "label_seconds": 2.0}
        file.write_text(json.dumps(content))
    base, row = tables_of(report_of(tmp_path))["cost"].rows
    assert base[:4] == ("rte", "bert", "15.0 (14.0 to 16.0)", "1.0 (1.0 to 1.0)")
    assert row[:4] == ("rte", "good", "30.0 (28.0 to 7,502.0)", "2.0 (2.0 to 2.0)")
    assert (row[5], row[6]) == ("1.40 (1.40 to 1.40)", "22,000,000")


@pytest.mark.integration
def test_reports_and_figures_are_the_same_each_time(tmp_path):
    write_comparison(tmp_path / "made", CHANCES, tasks=("rte", "sst2"), seeds=2)
    for name in ("one", "two"):
        report = report_of(tmp_path / "made")
        chosen = [part for section in report.sections for part in section.parts if part.name in FEW]
        report = dataclasses.replace(report, sections=(dataclasses.replace(report.sections[0], parts=tuple(chosen)),))
        drawn = write_figures(report, tmp_path / name / "figures")
        assert sorted(drawn) == ["confusion-rte", "loss-rte", "seeds-rte"]
        for ending in ("html", "md", "tex"):
            write_report(report, tmp_path / name / f"report.{ending}", drawn)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 3 + 3 * 3
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file
    assert "](figures/loss-rte.png)" in (tmp_path / "one/report.md").read_text()
    assert r"\includegraphics[width=\linewidth]{figures/loss-rte}" in (tmp_path / "one/report.tex").read_text()


class Page(HTMLParser):
    """Collects the tags, attributes, addresses and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ADDRESSES]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "nav", "a", "main", "header", "footer",
    "section", "div", "span", "small", "ul", "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure",
    "figcaption", "b", "details", "summary", "svg", "g", "path", "text", "defs", "use", "clippath", "tspan", "pattern",
    "rect", "bdi",
}  # fmt: skip
# The attributes that could load or run something; any other attribute only describes.
ADDRESSES = {"src", "href", "xlink:href", "action", "formaction", "data", "poster", "srcset"}


def check_page(text: str) -> Page:
    """Check a page: known tags, no address but its own parts, no handlers, and no script."""
    page = Page()
    page.feed(text)
    assert page.tags <= TAGS
    assert not {name for name in page.attributes if name.startswith("on")}
    assert page.attributes & ADDRESSES <= {"href", "xlink:href"}
    assert all(address.startswith("#") for address in page.addresses)
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\"" in text
    assert re.findall(r'style="[^"]*url\((?!#)', text) == []
    return page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report on a comparison whose tasks, methods, labels, errors and settings are hostile texts."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = [text for text in HOSTILE if text.strip()]
    methods, names = texts[::7][:8], ("<b>no</b>", "$x^$ \\ %\x1b[2J")
    write_comparison(
        folder, {f"m{number}": 0.5 + 0.05 * number for number in range(8)}, names=names, seeds=2, examples=40
    )
    for number, method in enumerate(methods):
        for seed in (1, 2):
            file = folder / f"records/rte/all/m{number}/seed-{seed}.json"
            content = json.loads(file.read_text())
            content["run"] |= {"method": f"{method} {number}", "task": texts[3]}
            content["config"]["model"]["name_or_path"] = texts[10 + number]
            content["versions"] = {texts[30]: texts[31]}
            file.write_text(json.dumps(content))
    for number, text in enumerate(texts):
        run = Run("rte", None, "m0", 100 + number)
        record = write_record(folder, run, None, score=None)
        failed = dataclasses.replace(
            record, status="failed", metric=None, scores={}, error={"kind": "E", "message": text}
        )
        (folder / f"records/rte/all/m0/seed-{run.seed}.json").write_text(failed.to_json())
    return report_of(folder)


@pytest.mark.integration
def test_a_page_needs_nothing_and_runs_nothing_whatever_its_texts(report, hostile):
    text = render_html(report)
    page = check_page(text)
    assert text.count("<svg") == text.count("</svg>") == len(figures_of(report))
    assert f"<h1>{report.question}</h1>" in text
    identifiers = re.findall(r' id="([^"]*)"', text)
    assert len(identifiers) == len(set(identifiers))
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(identifiers)
    text = render_html(hostile)  # which draws its figures
    page = check_page(text)
    assert not set(text) & {chr(code) for code in (*range(9), *range(11, 32), 0x7F, *range(0x80, 0xA0), 0x202E, 0x2066)}
    shown = "".join(page.words)
    assert "<script>alert(1)</script>" in shown


def test_hostile_texts_are_plain_in_markdown_and_latex(hostile):
    markdown = render_markdown(hostile, {})
    assert not re.search(r"(?<!\\)<", markdown)
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", row)) for row in rows if "failed" not in row}
    printed = [part for section in hostile.sections if not section.on_page_only for part in section.parts]
    tables = [part for part in printed if isinstance(part, Table)]
    assert widths == {len(table.header) + 1 for table in tables}
    latex = render_latex(hostile, {})
    body = "\n".join(line for line in latex.splitlines() if not line.startswith(("%", "\\providecommand")))
    assert not re.search(r"(?<!\\)[%#_]", body)
    assert not set(body) & set("~^<>|\"'`\x1b\x00")
    assert body.count("\\begin{table}") == len(tables) == body.count("\\end{table}")
    assert body.count("\\begin{tabular}") == body.count("\\end{tabular}")
    for text in HOSTILE:
        html = html_templates.from_string("{{ text }}").render(text=text)
        assert not set(html) & set("<>\"'")
        assert re.fullmatch(r"(?:[^&]|&(?:lt|gt|amp|#34|#39);)*", html)
        assert not re.search(r"(?<!\\)[<|`*\[]", re.sub(r"\\\\", "", escape_markdown(text)))
        assert "\n" not in escape_markdown(text) + escape_latex(text)


@pytest.mark.parametrize(
    ("escape", "text", "expected"),
    [
        (escape_latex, "a_b & c%", r"a\_b \& c\%"),
        (escape_latex, r"\frac{1}", r"\textbackslash{}frac\{1\}"),
        (escape_latex, "$x^2$ ~ #1", r"\$x\textasciicircum{}2\$ \textasciitilde{} \#1"),
        (escape_latex, "[2em] <b> |", r"{[}2em{]} \textless{}b\textgreater{} \textbar{}"),
        (escape_latex, "52.1 ± 1.0 ↑ †", r"52.1 \ensuremath{\pm} 1.0 \ensuremath{\uparrow} \ensuremath{\dagger}"),
        (escape_latex, "-2.3 (-4 to 1) bert-2", r"\ensuremath{-}2.3 (\ensuremath{-}4 to 1) bert-2"),
        (escape_latex, "a\nb", "a\u240ab"),
        (escape_markdown, "-52.1", "-52.1"),
        (escape_markdown, "52.1 (50.0 to 54.2)", "52.1 (50.0 to 54.2)"),
        (escape_markdown, "a|b", r"a\|b"),
        (escape_markdown, "x_1 *y* $z$", r"x\_1 \*y\* \$z\$"),
        (escape_markdown, "- a", r"\- a"),
        (escape_markdown, "1. a", r"1\. a"),
        (escape_markdown, "[a](b)", r"\[a\](b)"),
        (escape_markdown, "http://a.example www.a.example @a", r"http\://a.example www\.a.example \@a"),
    ],
)
def test_escapes(escape, text, expected):
    assert escape(text) == expected


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report whose tables are wider than a line and longer than a page."""
    folder = tmp_path_factory.mktemp("wide")
    chances = {f"method {number} with a long name": 0.5 + 0.05 * number for number in range(8)}
    write_comparison(folder, chances, tasks=("rte", "sst2", "cola", "mrpc", "qqp"), sizes=(100, 1000, None))
    return report_of(folder)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles_and_no_table_is_wider_than_a_line(rich, wide, tmp_path):
    packages = "\\usepackage{booktabs,textcomp,graphicx}\\usepackage[T1]{fontenc}"
    for number, report in enumerate((report_of(rich), wide)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_report(report, folder / "tables.tex", {} if report is wide else write_figures(report, folder / "figures"))
        (folder / "paper.tex").write_text(
            f"\\documentclass{{article}}{packages}\\begin{{document}}\\input{{tables}}\\end{{document}}"
        )
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
        done = subprocess.run(command, cwd=folder, capture_output=True)
        assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
        log = (folder / "paper.log").read_text(errors="replace")
        assert not re.findall(r"Overfull .hbox.*|Float too large.*", log)


def test_invalid_folders_and_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"nowhere: there is no such folder"):
        collect([str(tmp_path / "nowhere")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty: holds no finished run. Expected the folder of a comparison"):
        collect([str(tmp_path / "empty")])
    write_comparison(tmp_path / "made", {"bert": 0.6})
    report = report_of(tmp_path / "made")
    with pytest.raises(ConfigError, match=r"report\.docx: expected a name that ends in \.html, \.md, \.tex"):
        write_report(report, tmp_path / "report.docx")
    with pytest.raises(StorageError, match=r"no/report\.md: could not be written: its folder does not exist"):
        write_report(report, tmp_path / "no/report.md")
    (tmp_path / "made/records/rte/all/bert/seed-1.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"seed-1\.json: is no record of a run"):
        report_of(tmp_path / "made")


def test_tables_need_no_matplotlib(tmp_path, monkeypatch):
    write_comparison(tmp_path, CHANCES)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = report_of(tmp_path)
    write_report(report, tmp_path / "a.md")
    for call in (lambda: write_report(report, tmp_path / "a.html"), lambda: write_figures(report, tmp_path / "f")):
        with pytest.raises(ConfigError, match="needs matplotlib, not installed"):
            call()
    assert not (tmp_path / "f").exists()


def test_loss_curves_have_the_time_of_token_labels_and_their_middle_is_that_of_steps(tmp_path):
    record = write_record(tmp_path, Run("rte", None, "bert", 1), None)
    lines = [{"step": 4 * n, "epoch": n // 2, "seconds": 1.0 + n, "loss": 1.0 - 0.1 * n} for n in range(4)]
    made = [{"epoch": 0, "seconds": 0.5}, {"epoch": 1, "seconds": 2.0}]
    first = loss_curve(dataclasses.replace(record, curve=lines, labels_by_epoch=made))
    assert first == {
        0: (1.5, 1.0),
        4: (2.5, pytest.approx(0.9)),
        8: (5.5, pytest.approx(0.8)),
        12: (6.5, pytest.approx(0.7)),
    }
    # With a token head the task's loss alone is drawn.
    both = [{**line, "task_loss": 2 * line["loss"]} for line in lines]
    assert [y for _, y in loss_curve(dataclasses.replace(record, curve=both)).values()] == pytest.approx(
        [2 * y for _, y in first.values()]
    )
    assert loss_curve(dataclasses.replace(record, curve=lines[:1])) is None
    xs, ys = mean_curve([first, {4: (4.5, 0.5), 8: (7.5, 0.4)}])
    assert (xs, ys) == ([3.5, 6.5], [pytest.approx(0.7), pytest.approx(0.6)])
    xs, _ = mean_curve([first, {4: (4.5, 0.5), 8: (7.5, 0.4)}, {4: (9000.0, 0.5), 8: (9001.0, 0.4)}])
    assert xs == [4.5, 7.5]


def test_the_loss_figure_is_the_tasks_loss_on_a_logarithmic_axis(tmp_path):
    write_comparison(tmp_path, {"bert": 0.6, "good": 0.8}, seeds=1)
    for method in ("bert", "good"):
        file = tmp_path / f"records/rte/all/{method}/seed-1.json"
        content = json.loads(file.read_text())
        content["curve"] = [
            {"step": n, "epoch": 0, "seconds": float(n), "loss": 9.0, "task_loss": 8.0 / 2**n} for n in range(4)
        ]
        content["labels_by_epoch"] = [{"epoch": 0, "seconds": 10.0}]
        file.write_text(json.dumps(content))
    figure = figures_of(report_of(tmp_path))["loss-rte"].draw()
    assert figure.axes[0].get_yscale() == "log"
    xs, ys = drawn_numbers(figure)[0]
    assert (list(xs), list(ys)) == ([10.0, 11.0, 12.0, 13.0], [8.0, 4.0, 2.0, 1.0])


@pytest.mark.integration
@pytest.mark.parametrize("name", ["m", "a name that is long but could be " * 3])
def test_all_text_of_a_figure_is_inside_it(tmp_path, name):
    write_comparison(
        tmp_path,
        {f"{number} {name}".strip()[:80]: 0.5 + 0.04 * number for number in range(6)},
        tasks=("rte", "sst2"),
        sizes=(100, 1000),
        seeds=2,
        examples=60,
        names=("a label of several words", "no"),
    )
    for figure in report_of(tmp_path).figures():
        if figure.name.endswith("sst2"):
            continue
        drawn = figure.draw()
        figure_bytes(drawn, "png")
        boxes = [axis.get_tightbbox() for axis in drawn.axes]
        boxes += [legend.get_window_extent() for legend in drawn.legends]
        for box in boxes:
            assert box.x0 >= -1, figure.name
            assert box.y0 >= -1, figure.name
            assert box.x1 <= drawn.bbox.x1 + 1, figure.name
            assert box.y1 <= drawn.bbox.y1 + 1, figure.name


@pytest.mark.parametrize(("rows", "said"), [(1, "1 row"), (2, "2 rows")])
def test_a_folded_table_says_how_many_rows_it_has(report: Report, rows: int, said: str) -> None:
    cost = Table("cost", "Cost", ("method",), (("bert",),) * rows)
    page = render_html(dataclasses.replace(report, sections=(dataclasses.replace(report.sections[0], parts=(cost,)),)))
    assert f"<summary>Cost ({said})</summary>" in page
