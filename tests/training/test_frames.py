"""Data frames: training and predicting from Python, and what a notebook shows."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from safetensors.numpy import load_file

import attentune
from attentune.automl.leaderboard import AutoResult, LeaderboardRow
from attentune.automl.work import AutoProgress
from attentune.errors import AttentuneError
from attentune.explain.explanation import Explanation, Subword
from attentune.results import RunResult
from attentune.training.callbacks import NotebookBar, ProgressDisplay, TrainingState
from helpers.samples import settings

QUIET = ProgressDisplay(quiet=True)


def overrides(folder: Path, encoder: Path, **changes: object) -> dict[str, object]:
    """Settings of a tiny run without the files of its rows."""
    values = settings(folder, encoder, data__validation_share=0.25, **changes)
    return {name: value for name, value in values.items() if name not in ("data.train_file", "data.validation_file")}


@pytest.fixture
def reviews(tmp_path, tiny) -> pandas.DataFrame:
    settings(tmp_path, tiny("bert"))
    frame = pandas.read_csv(tmp_path / "train.csv")
    return frame.set_index(frame["id"] + "!")


def test_a_data_frame_trains_as_its_file_does_and_is_predicted_with_its_index(tmp_path, tiny, reviews):
    values = overrides(tmp_path, tiny("bert"), training__output_dir=str(tmp_path / "file"))
    from_file = attentune.load_config(overrides=values | {"data.train_file": str(tmp_path / "train.csv")})
    before = attentune.train(from_file, display=QUIET, with_baselines=False)
    values |= {"training.output_dir": str(tmp_path / "frame"), "data.calibration_share": None}
    result = attentune.train(
        reviews.rename(columns={"text": "words"}), text="words", label="label", overrides=values, display=QUIET
    )
    assert result.folder == tmp_path / "frame"
    assert (result.scores, result.data_fingerprint) == (before.scores, before.data_fingerprint)
    weights, expected = (load_file(folder / "model.safetensors") for folder in (result.folder, before.folder))
    assert all(np.array_equal(weights[name], expected[name]) for name in expected)

    predicted = attentune.predict(result.folder, reviews[["text"]].rename(columns={"text": "words"}).assign(n=1)[5:9])
    told = attentune.predict(result.folder, list(reviews["text"][5:9]))
    assert list(predicted.columns) == ["prediction", "p_bad", "p_good"]
    assert predicted.index.tolist() == reviews.index[5:9].tolist()
    assert predicted["prediction"].tolist() == [one["prediction"] for one in told]
    assert predicted["p_good"].tolist() == [one["probabilities"]["good"] for one in told]
    assert attentune.predict(result.folder, predicted.assign(words="x")[:0]).shape == (0, 3)
    with pytest.raises(AttentuneError, match="no column 'words', which .*frame was trained on.*Rename one to 'words'"):
        attentune.predict(result.folder, reviews)


def test_labels_may_be_scores_and_calibration_rows_are_cut_once(tmp_path, tiny, reviews):
    stars = reviews.assign(stars=np.arange(len(reviews)) / 7).rename(columns={"text": 0})
    values = overrides(tmp_path, tiny("bert"), data__task_type="regression", training__num_train_epochs=1)
    folder = attentune.train(stars, text="0", label="stars", overrides=values, display=QUIET).folder
    assert attentune.predict(folder, stars[:2]).columns.tolist() == ["prediction"]
    values = overrides(tmp_path, tiny("bert"), training__overwrite_output_dir=True, data__calibration_share=0.25)
    values["training.calibrate"] = "temperature"
    result = attentune.train(reviews, overrides=values, display=QUIET)
    rows = result.train["rows"], result.train["calibration"]["rows"]
    assert rows == (27, 9)  # a quarter of the 36 rows that validation leaves


@pytest.mark.parametrize(
    ("change", "arguments", "expected"),
    [
        ({}, {"text": "txt"}, "text: the data frame has no column 'txt'. Did you mean 'text'"),
        ({}, {"label": ["label", "stars"]}, "label: the data frame has no column 'stars'"),
        ({}, {"text": "text", "text_pair": "other"}, "text_pair: the data frame has no column 'other'"),
        ({"text": None}, {}, "data frame: row 0: column 'text' has no text here"),
        ({"label": 1.5}, {}, "data frame: column 'label' holds only the label '1.5'"),
        ({}, {"overrides": {"data.task": "cola"}}, "got task and data frame together"),
        ({}, {"overrides": {"training.output_dir": None}}, "--output_dir"),
    ],
)
def test_a_mistake_is_told_with_its_cure(reviews, tmp_path, monkeypatch, change, arguments, expected):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AttentuneError, match=re.escape(expected)):
        attentune.train(reviews.assign(**change), display=QUIET, **arguments)
    assert not (tmp_path / "runs").exists()


def test_what_is_no_data_frame_and_one_without_rows_or_with_twins_is_refused(reviews):
    with pytest.raises(AttentuneError, match="got a str, expected a Config"):
        attentune.train("reviews.csv")
    with pytest.raises(AttentuneError, match="data frame: has no rows"):
        attentune.train(reviews[:0])
    with pytest.raises(AttentuneError, match="names 'text' more than once"):
        attentune.train(pandas.concat([reviews, reviews], axis=1)[["label", "text"]].iloc[:, [0, 2, 3]])
    with pytest.raises(AttentuneError, match="names '' more than once"):
        attentune.train(reviews.assign(a=1, b=2).rename(columns={"a": "", "b": ""}))


RESULT = RunResult(
    scores={"validation": {"accuracy": 0.5, "<f1>": None}},
    train={},
    best=None,
    config={"training": {"output_dir": "runs/<b>"}},
    seed=1,
    versions={},
    data_fingerprint={},
    notes=["Expected calibration error: validation 0.0312."],
    baselines={"metric": "accuracy", "methods": [{"name": "<i>", "score": 0.5, "low": None, "high": None}]},
    warnings=["worse than <i>"],
)
AUTO = AutoResult(
    folder=Path("best/<b>"),
    metric="<f1>",
    leaderboard=[LeaderboardRow("<i>", "baseline", "majority", score=0.5)],
    reason="worse than <i>",
    estimate={"metric": "accuracy", "value": None},
    scores={},
    seconds=1.0,
)
EXPLAINED = Explanation(
    text="a <b> film",
    pair=None,
    method="leave-one-out",
    label="<i>",
    probability=0.75,
    prediction="<i>",
    signed=True,
    passes=1,
    seconds=0.0,
    level="token",
    unit="<f1>",
    pieces=(Subword("a", 0, 1, -0.5), Subword("<b>", 2, 5, 1.0)),
)


@pytest.mark.parametrize("shown", [RESULT, AUTO, EXPLAINED, replace(EXPLAINED, pair="<b>", label=1.5, pieces=())])
def test_a_notebook_gets_escaped_html_without_colours_of_text(shown):
    html = shown._repr_html_()
    assert not re.search("<b>|<i>|<f1>", html)
    assert "&lt;b&gt;" in html
    assert not re.search(r"(?<!-)\bcolor:|#[0-9a-f]{3}|\bwhite\b|\bblack\b", html)


def test_a_notebook_shows_words_by_their_scores():
    assert re.findall(r"rgba\(([^)]+)\)[^>]*>([^<]+)<", EXPLAINED._repr_html_()) == [
        ("38, 112, 214, 0.28", "a"),
        ("226, 60, 48, 0.55", "&lt;b&gt;"),
    ]
    assert "<td>&lt;b&gt;</td><td>+1</td>" in EXPLAINED._repr_html_()


# Progress in a notebook: one output, updated in place


class Output:
    def __init__(self) -> None:
        self.made, self.contents = 0, list[dict[str, str]]()

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> "Output":
        assert raw
        assert display_id
        self.made += 1
        self.update(content, raw=raw)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        self.contents.append(content)


def test_progress_in_a_notebook_is_one_bar(monkeypatch, capsys):
    output = Output()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("IPython.display.display", output.display)
    monkeypatch.setattr(NotebookBar, "_EVERY_S", 0.0)
    display = ProgressDisplay()
    display.info("rows: <b>8</b>")
    display.start(40, 0, keeps_best=True)
    display.warning("few rows")
    for step in range(1, 41):
        display.on_step_end(TrainingState(step=step, tokens=1000, seconds=1.0), {"loss": 0.5})
    display.stop()
    display.info("done")
    assert output.made == 1
    shown = output.contents[-1]["text/html"]
    assert '<progress value="40" max="40"></progress> 40 of 40; loss 0.5000, 1,000 tokens/s' in shown
    assert "<div>done</div><div>warning: few rows</div>" in shown
    assert "<pre>rows: &lt;b&gt;8&lt;/b&gt;\ndone</pre>" in shown
    assert output.contents[-1]["text/plain"] == "done\nwarning: few rows"
    quiet = ProgressDisplay(quiet=True)
    quiet.info("nothing")
    quiet.start(2, 0, keeps_best=True)
    quiet.on_step_end(TrainingState(step=2, tokens=1000, seconds=1.0), {"loss": 0.5})
    auto = AutoProgress()
    auto.start(3)
    auto.update(2, 3, failed=0, running=(), left=30)
    assert "2 of 3;" in output.contents[-1]["text/html"]
    auto.stop()
    assert "progress" not in output.contents[-1]["text/html"]
    assert output.made == 2
    assert capsys.readouterr() == ("", "")
