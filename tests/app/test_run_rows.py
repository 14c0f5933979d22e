"""The example, the heading and the worst errors of a page, from the rows of its runs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from attentune.app import run_rows
from attentune.app.error_table import error_table, joined_error_table
from attentune.app.headline import headline
from attentune.app.limits import RequestLimits
from attentune.app.report_page import ReportPage
from attentune.app.run_rows import WrongRows, example_of, wrong_validation_rows
from attentune.app.service import ExplanationService
from attentune.errors import CheckpointError, DataError
from attentune.inference.evaluation import RowError, evaluate_split
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor, predict_rows
from helpers.explain_runs import tiny_run
from helpers.tiny_models import rows_of

Tiny = Callable[..., Path]
TEXTS = ("Yes", "one two three four five six", "seven words are more than six words", "nobody knows why", "it moves on")
LIMITS = RequestLimits(rows=50)


def with_file(
    run: Predictor, folder: Path, labels: list[str], texts: tuple[str, ...] = TEXTS, **data: Any
) -> Predictor:
    """The run, as if it had been trained with this validation file and saved in the folder."""
    file = folder / "dev.csv"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("id", "text", "label"), *zip("abcdefgh", texts, labels, strict=False)])
    own = replace(run.config.data, validation_file=str(file), **data)
    return replace(run, folder=folder, config=replace(run.config, data=own))


@pytest.fixture(scope="module")
def plain(tiny: Tiny) -> Predictor:
    return tiny_run(tiny(), gate=False)


def test_the_example_is_the_first_row_of_six_to_thirty_words(plain: Predictor, tmp_path: Path) -> None:
    example = example_of(with_file(plain, tmp_path, ["bad", "good", "bad", "good", "bad"]))
    assert example.text == TEXTS[1]
    assert example.about == "An example: row b of the validation rows, labelled good. Type your own."
    long = with_file(plain, tmp_path, ["bad", "good"], ("no", "word " * 31))
    assert example_of(long).about == "An example. Type your own."


def test_without_rows_the_example_is_a_sentence_of_ours(plain: Predictor, tiny: Tiny, tmp_path: Path) -> None:
    assert example_of(plain).text.startswith("The first half was slow")
    assert example_of(plain).pair == ""
    assert example_of(tiny_run(tiny(), "pair")).pair
    lost = replace(plain, config=replace(plain.config, data=replace(plain.config.data, validation_file="/no/such.csv")))
    assert example_of(lost) == example_of(plain)


def test_data_sets_of_the_hub_and_large_files_are_not_read(
    plain: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = replace(plain, config=replace(plain.config, data=replace(plain.config.data, dataset_name="me/reviews")))
    text = unescape(ExplanationService([("run", hub)]).worst_errors())
    assert "The page does not load the data set me/reviews, which the run was trained on." in text
    large = with_file(plain, tmp_path, ["bad", "good"])
    monkeypatch.setattr(run_rows, "MOST_BYTES", 10)
    assert (
        "dev.csv is larger than 0 MB, so the page does not read it."
        in ExplanationService([("run", large)]).worst_errors()
    )


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_worst_errors_are_those_of_evaluate(tiny: Tiny, tmp_path: Path, kind: str, kept: bool) -> None:
    labels = ["bad", "good", "bad", "good", "bad"] if kind == "classification" else ["1", "2", "3", "4", "5"]
    run = with_file(tiny_run(tiny(), kind, gate=False), tmp_path, labels, task_type=kind)
    rows = run.data(None, ("validation",)).splits["validation"]
    logits_NC = predict_rows(run, rows)
    if kept:  # the predictions of the run folder are used: these say the opposite of what the run would say now
        logits_NC = -logits_NC
        (tmp_path / "predictions_validation.csv").write_text(predictions_csv(rows, logits_NC, run.label_space))
    expected = evaluate_split("validation", rows, logits_NC, run.label_space, ("accuracy",) if kind[0] == "c" else ())
    found = wrong_validation_rows(run, limits=LIMITS)
    assert [(error.row, error.prediction) for error in found.errors] == [
        (error.row, error.prediction) for error in expected.errors
    ]
    assert [error.size for error in found.errors] == pytest.approx([error.size for error in expected.errors], abs=1e-5)
    html = ExplanationService([("run", run)], limits=LIMITS).worst_errors()
    inputs = [json.loads(unescape(found)) for found in re.findall(r'data-input="([^"]*)"', html)]
    assert inputs == [{"text": TEXTS[error.row], "pair": None} for error in expected.errors]
    if kind == "classification":
        assert f"{len(inputs)} of 5 validation rows" in html
    else:
        assert "The largest errors on 5 validation rows; the worst first. Click a text" in html


def test_predictions_of_other_rows_are_not_used(plain: Predictor, tmp_path: Path) -> None:
    run = with_file(plain, tmp_path, ["bad", "good", "bad"])
    header = "id,label,prediction,p_bad,p_good\n"
    (tmp_path / "predictions_validation.csv").write_text(header + "x,bad,good,0.1,0.9\n")
    rows = run.data(None, ("validation",)).splits["validation"]
    now = evaluate_split("validation", rows, predict_rows(run, rows), run.label_space, ("accuracy",))
    assert wrong_validation_rows(run, limits=LIMITS).errors == now.errors
    with pytest.raises(DataError, match="The file has 3 rows; this page accepts at most 2"):
        wrong_validation_rows(run, limits=RequestLimits(rows=2))


def test_the_worst_errors_of_a_file(plain: Predictor, tmp_path: Path) -> None:
    service = ExplanationService([("mine", plain)], limits=LIMITS)
    rows = with_file(plain, tmp_path, ["bad"] * 5).data(None, ("validation",)).splits["validation"]
    predicted = [plain.label_space.names[int(logits.argmax())] for logits in predict_rows(plain, rows)]
    wrong = ["good" if label == "bad" else "bad" for label in predicted]
    buffer = io.StringIO()
    csv.writer(buffer).writerows([("body", "class"), *zip(TEXTS, wrong, strict=True)])
    file = tmp_path / "new.csv"
    file.write_text(buffer.getvalue())
    html = service.worst_errors(file, text_column="body", label_column="class")
    assert "5 of 5 rows of new.csv are wrong; the worst first" in html
    file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, predicted, strict=True)))
    assert "All 5 rows of new.csv are right." in service.worst_errors(file)


def found_on(texts: tuple[str, ...], wrong: dict[int, float], task_type: str = "classification") -> WrongRows:
    """Errors of these sizes at these rows, whose labels are all "good"."""
    errors = tuple(RowError(row, str(row), "good", "bad", size) for row, size in wrong.items())
    return WrongRows("9 rows", rows_of(texts), errors, task_type, ("bad", "good"))


def shown_groups(html: str) -> dict[str, list[str]]:
    """The texts of each group of a table of two runs, by its heading."""
    groups: dict[str, list[str]] = {}
    for heading, text in re.findall(r'scope="rowgroup">([^<]*)|data-input="([^"]*)"', html):
        if heading:
            groups[heading] = []
        else:
            groups[list(groups)[-1]].append(json.loads(unescape(text))["text"])
    return groups


def test_errors_of_two_runs_are_in_one_table() -> None:
    texts = tuple("abcdefghi")
    first, second = found_on(texts, {0: 0.9, 1: 0.2, 2: 0.7}), found_on(texts, {1: 0.9, 2: 0.1, 3: 0.5, 4: 0.6})
    html = joined_error_table(("mine", "other"), (first, second))
    groups = {"Wrong by both: 2": ["b", "c"], "Wrong by mine only: 1": ["a"], "Wrong by other only: 2": ["e", "d"]}
    assert shown_groups(html) == groups
    assert (
        '<td data-name="label">good</td><td class="wrong" data-name="mine">bad <span class="size">0.90</span></td>'
        in html
    )
    assert '<td data-name="other">good</td>' in html
    none = found_on(texts, {})
    assert (
        joined_error_table(("mine", "other"), (none, none)) == '<p class="facts">All 9 rows are right by both runs.</p>'
    )
    many = found_on(tuple(map(str, range(30))), {row: row / 30 for row in range(30)})
    (both, *rest) = shown_groups(joined_error_table(("mine", "other"), (many, many))).items()
    assert both == ("Wrong by both: 30, the 10 worst", [str(row) for row in range(29, 19, -1)])
    assert rest == [("Wrong by mine only: 0", []), ("Wrong by other only: 0", [])]


def test_scores_of_two_runs_are_compared_by_their_distance() -> None:
    texts = tuple("abc")
    first, second = (
        found_on(texts, sizes, "regression") for sizes in ({0: 3.0, 1: 2.0, 2: 0.5}, {0: 1.0, 1: 2.5, 2: 0.5})
    )
    groups = shown_groups(joined_error_table(("mine", "other"), (first, second)))
    assert groups == {
        "The largest errors of both": ["b", "a", "c"], "mine is further off": ["a"], "other is further off": ["b"],
    }  # fmt: skip


def test_runs_with_other_labels_have_tables_of_their_own(plain: Predictor, tiny: Tiny, tmp_path: Path) -> None:
    labels = ["bad", "good", "bad", "good", "bad"]
    mine, same = (with_file(run, tmp_path, labels) for run in (plain, tiny_run(tiny(), gate=False)))
    html = ExplanationService([("mine", mine), ("same", same)], limits=LIMITS).worst_errors()
    assert "<h2>mine and same</h2>" in html
    assert html.count("<table") == 1
    (tmp_path / "two").mkdir()
    elsewhere = with_file(plain, tmp_path / "two", ["good", *labels[1:]])
    html = ExplanationService([("mine", mine), ("other", elsewhere)], limits=LIMITS).worst_errors()
    assert re.findall(r"<h2>(\w+)</h2>", html) == ["mine", "other"]


def test_the_table_has_the_worst_rows_only_and_short_labels(plain: Predictor, tmp_path: Path) -> None:
    texts = tuple(f"row {n}" for n in range(30))
    file = tmp_path / "many.csv"
    for label in ("bad", "good"):
        file.write_text("text,label\n" + "".join(f"{text},{label}\n" for text in texts))
        html = ExplanationService([("run", plain)], limits=LIMITS).worst_errors(file)
        if "the 20 worst" in html:
            break
    assert html.count("<button") == 20
    sizes = [float(size) for size in re.findall(r'data-name="error">([\d.]+)<', html)]
    assert sizes == sorted(sizes, reverse=True)
    wrong = WrongRows("rows", rows_of(["a"]), (RowError(0, "0", "x" * 99, "y", 0.5),), "multi_label")
    assert "x" * 37 + "..." in error_table(wrong)
    assert "x" * 38 not in error_table(wrong)
    assert "largest one of a label's probability" in error_table(wrong).replace("&#x27;", "'")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "text\nyes\n", "a.csv"),
        ("a.csv", "text,label\n" + "yes,good\n" * 51, "The file has 51 rows; this page accepts at most 50."),
        ("a.csv", "text,label\nyes,other\n", "other"),
        ("a.parquet", "x", "a.parquet: unsupported file type, expected one of .csv"),
    ],
)
def test_files_without_errors_to_show_get_a_message(
    plain: Predictor, tmp_path: Path, name: str, content: str, expected: str
) -> None:
    (tmp_path / name).write_text(content)
    html = unescape(ExplanationService([("run", plain)], limits=LIMITS).worst_errors(tmp_path / name))
    assert expected in html
    assert "att-message" in html
    assert str(tmp_path) not in html


# The heading


def test_the_heading_says_what_the_runs_do(tiny: Tiny, plain: Predictor) -> None:
    text = re.sub(r"<[^>]*>", " ", headline([("reviews", plain), ("other", plain)]))
    assert text.split("reviews sorts")[0].split() == ["reviews", "and", "other"]
    assert "reviews sorts a text into bad or good. It reads up to 64 word pieces." in text
    score = re.sub(r"<[^>]*>", " ", headline([("r", tiny_run(tiny(), "regression"))]))
    assert " ".join(score.split()) == "This model gives a text a score. Run r. It reads up to 64 word pieces."
    assert "This model sorts a pair of texts into no, maybe or yes." in headline([("r", tiny_run(tiny(), "pair"))])


def test_the_heading_has_the_score_of_a_recorded_run(plain: Predictor) -> None:
    kept = replace(plain, folder=Path(__file__).parents[1] / "data_samples" / "run")
    assert re.search(r"On its validation rows: [a-z0-9 ]+ \d\.\d{3}\.", headline([("r", kept)]))


# The report


def test_the_report_is_made_once_and_when_it_is_asked_for(tmp_path: Path) -> None:
    made: list[Path] = []

    def build(file: Path) -> None:
        made.append(file)
        file.write_text("<p>report")

    report = ReportPage(tmp_path / "report.html", build)
    assert made == []
    assert report.html() == report.html()
    assert made == [tmp_path / "report.html"]
    assert 'src="/report" sandbox="allow-scripts" title="Report"' in report.html()


def test_why_there_is_no_report_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def refused(file: Path) -> None:
        raise CheckpointError("runs/<b>: holds no finished run.")

    def fails(file: Path) -> None:
        raise KeyError("secret")

    assert "There is no report: runs/&lt;b&gt;: holds no finished run." in ReportPage(tmp_path / "x", refused).html()
    assert "secret" not in ReportPage(tmp_path / "x", fails).html()
    assert "KeyError: 'secret'" in capfd.readouterr().err
