"""The model card of a run folder: the hub's tools read its top, it renders, and no name breaks out of it."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from attentune.config import Config, load_config, model_preset_names
from attentune.data.dataset import LabelSpace, TaskData, data_name
from attentune.data.doctor import examine
from attentune.metrics.metrics import METRICS, predictions_of, score_predictions
from attentune.results import RunResult
from attentune.stats.estimate import wilson_interval
from attentune.training.card import CardFacts, front_matter, metric_interval, model_card, one_line, plain
from helpers import interrupted
from helpers.tiny_models import TWO, rows_of

HOSTILE = [
    "<script>alert(1)</script>", "a|b", "`code` ``` fence", "[link](http://evil.example) ![image](x.png)",
    "line\nbreak", "---\nlibrary_name: evil\n---", "# heading", "**bold** _slanted_ ~~gone~~ $x$", "&lt;b&gt; &#60;",
    "{a: b}", "- item", "1. item", "@someone #1 www.evil.example", "\u202egnp.exe", "x" * 500, "",
]  # fmt: skip


def rendered(text: str) -> str:
    """HTML as the hub would make it, were it to let HTML through."""
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def body(card: str) -> str:
    return card.split("\n---\n", 1)[1]


def facts(
    space: LabelSpace = TWO, *, metric: str = "accuracy", config: Config | None = None, pair: bool = False
) -> CardFacts:
    draw, rows, texts = np.random.default_rng(3), 40, ["text"] * 40
    labels = draw.normal(size=rows) if space.task_type == "regression" else draw.integers(0, space.num_labels, rows)
    split = rows_of(texts, texts if pair else None, labels)
    logits = draw.normal(size=(rows, space.num_labels))
    if space.task_type == "regression":
        logits[:, 0] += labels
    config = config or load_config(preset="ssa-hybrid")
    data = TaskData(data_name(vars(config.data)), space, (metric,), {"train": split, "validation": split})
    scores = {"validation": score_predictions([metric], labels, logits, space)}
    told = {"train": {"precision": "fp32", "steps": 7}, "versions": {"attentune": "0.1.0"}}
    result = RunResult(scores, **told, best=None, config={}, seed=42, data_fingerprint=data.fingerprint())
    return CardFacts(config, data, METRICS[metric], result, {"validation": logits})


# A real run


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    interrupted.run(folder, tiny("bert"), training__num_train_epochs=1, preset="ssa-hybrid")
    return folder / "run"


def test_the_hub_s_own_tools_read_the_card_of_a_run(run: Path) -> None:
    card = ModelCard.load(run / "README.md")
    scores = json.loads((run / "metrics.json").read_text())["validation"]
    assert card.data.library_name == "attentune"
    assert card.data.pipeline_tag == "text-classification"
    assert {"attentune", "text-classification", "ssa-hybrid"} <= set(card.data.tags)
    assert card.data.metrics == ["accuracy", "f1"]
    found = {result.metric_name: result.metric_value for result in card.data.eval_results}
    assert found == scores
    assert {result.dataset_split for result in card.data.eval_results} == {"validation"}


def test_the_card_of_a_run_tells_data_method_settings_and_use(run: Path) -> None:
    text = (run / "README.md").read_text()
    record = json.loads((run / "run.json").read_text())
    page = rendered(body(text))
    for heading in ("Scores", "Data", "Method", "Settings", "How to use", "Limits"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("<table>") == 3
    assert all(fingerprint in page for fingerprint in record["data_fingerprint"].values())
    rows, accuracy = 20, record["scores"]["validation"]["accuracy"]
    low, high = wilson_interval(round(accuracy * rows), rows)
    assert f"<td>{accuracy:.4f}</td>\n<td>{low:.4f} to {high:.4f}</td>\n<td>{rows}</td>" in page
    assert "Kou et al. 2020" in page
    assert "<td><code>training.learning_rate</code></td>\n<td>0.001</td>" in page
    # No path of the machine that trained.
    assert str(run.parent) not in text
    assert "base_model" not in text


def test_the_python_of_the_card_runs(run: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(run.parent)
    blocks = re.findall(r"```python\n(.*?)```", (run / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block.replace("FOLDER", "run"), "card", "exec"), {})
    assert capsys.readouterr().out.count("good") == 3


# Made by hand


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("embedded", "sentence-transformers/all-MiniLM-L6-v2"),
        ("google/electra-small-discriminator", "google/electra-small-discriminator"),
        ("/data/models/mine", None),
        ("../mine", None),
        ("a/b/c", None),
    ],
)
def test_a_name_on_the_hub_is_the_base_model_and_a_folder_is_none(name: str, shown: str | None) -> None:
    given = {"data.train_file": "/data/private/rows.csv"} if shown is None else {"data.dataset_name": "org/reviews"}
    card = model_card(facts(config=load_config(overrides={"model.name_or_path": name, **given})))
    top = yaml.safe_load(card.split("---\n")[1])
    assert (top.get("base_model"), top.get("datasets")) == (shown, ["org/reviews"] if shown else None)
    assert shown or f"# {name.split('/')[-1]} on rows.csv\n" in card
    assert "/data" not in card


@pytest.mark.parametrize("preset", model_preset_names())
def test_every_preset_is_told_with_its_source(preset: str) -> None:
    card = model_card(facts(config=load_config(preset=preset)))
    assert f"with the preset `{preset}`: " in card
    assert yaml.safe_load(card.split("---\n")[1])["tags"][-1] == preset


@pytest.mark.integration
@pytest.mark.parametrize(
    ("space", "metric"),
    [
        (TWO, "f1"),
        (TWO, "matthews_correlation"),
        (LabelSpace("classification", ("a", "b", "c")), "f1_macro"),
        (LabelSpace("ordinal", ("low", "middle", "high"), "expected-value"), "quadratic_weighted_kappa"),
        (LabelSpace("regression"), "pearson"),
        (LabelSpace("regression"), "mean_squared_error"),
    ],
)
def test_other_metrics_have_an_interval_around_the_score(space: LabelSpace, metric: str) -> None:
    made = facts(space, metric=metric, pair=True)
    predictions = predictions_of(made.logits["validation"], space)
    low, high = metric_interval(made.metric, made.data.splits["validation"].labels, predictions, made.result.seed)
    score = made.result.scores["validation"][metric]
    assert low < score < high
    card = model_card(made)
    assert f"| {score:.4f} | {low:.4f} to {high:.4f} | 40 |" in card
    assert card == model_card(made), "the same each time"
    assert "text_pair" in card
    assert ("the class nearest to the mean of the classes" in card) == (space.ordinal_prediction == "expected-value")
    assert ("not calibrated" in card) == (space.task_type != "regression")


def test_a_score_that_is_not_defined_is_left_out() -> None:
    made = facts(LabelSpace("regression"), metric="pearson")
    for value in (None, float("nan")):
        card = model_card(replace(made, result=replace(made.result, scores={"validation": {"pearson": value}})))
        assert "The run was not scored." in card
        assert "model-index" not in card
        assert "nan" not in card


def test_it_is_said_that_the_best_weights_were_chosen_by_the_score() -> None:
    config = load_config(overrides={"training.load_best_model_at_end": True})
    made = facts(config=config)
    best = {"metric": "accuracy", "value": 0.5, "step": 3}
    assert "chosen by the validation score" in model_card(replace(made, result=replace(made.result, best=best)))
    assert "chosen by the validation score" not in model_card(facts())


# Hostile names


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_out(name: str) -> None:
    given: dict[str, Any] = {"data.train_file": f"{name}.csv".replace("/", "-"), "data.text_column": name or "a"}
    space = LabelSpace("classification", (name, f"{name}2", "fine"))
    card = model_card(facts(space, config=load_config(overrides=given)))
    ordinary = load_config(overrides={"data.train_file": "a.csv", "data.text_column": "a"})
    calm = model_card(facts(LabelSpace("classification", ("a", "b", "fine")), config=ordinary))
    top = yaml.safe_load(card.split("---\n")[1])
    assert list(top) == list(yaml.safe_load(calm.split("---\n")[1]))
    assert top["library_name"] == "attentune"
    assert ModelCard(card).data.model_name == top["model-index"][0]["name"]
    # The same tags in the same order: whatever the name holds is text.
    tags = [re.findall(r"<[^>]*>", rendered(body(text))) for text in (card, calm)]
    assert tags[0] == tags[1]


@given(st.text(min_size=1))
def test_a_cell_stays_a_cell(text: str) -> None:
    page = rendered(f"| a | b |\n| --- | --- |\n| {plain(text)} | 1 |\n| 2 | {plain(text)} |")
    assert (page.count("<tr>"), page.count("<td>"), page.count("<")) == (3, 4, 24)


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.text() | st.lists(st.text())))
def test_front_matter_is_read_back(values: dict[str, Any]) -> None:
    text = front_matter(values)
    assert text.count("\n---\n") == 1
    found = yaml.safe_load(text.split("---\n", 1)[1].rsplit("---\n", 1)[0])
    assert (found or {}) == {
        key: one_line(value) if isinstance(value, str) else [one_line(part) for part in value]
        for key, value in values.items()
    }


def test_findings_of_the_data_are_in_it_without_words_of_texts() -> None:
    texts = ("a secretÃ¤ text", "another one", "another one", "<b>x</b> fourth")
    space = LabelSpace("classification", ("good", "bad", "<i>Ä</i>"))
    train_rows = rows_of(texts, None, [0, 1, 1, 1])
    data = TaskData("own", space, ("accuracy",), {"train": train_rows})
    report = examine(data)
    assert any("secret" in finding.message for finding in report.findings), "the report of the doctor quotes a word"
    card = model_card(replace(facts(space), findings=report.findings))
    assert "secret" not in card
    section = html.unescape(card.split("## Data\n")[1].split("\n## ")[0])
    assert "- warning: train: 1 row with characters of a wrong encoding.\n" in section
    assert "- note: train: 1 row with the text of an earlier row (25.0 %)." in section
    assert "no row has the label '<i>Ä</i>'" in section
    assert "<i>" not in rendered(body(card))
    assert "attentune doctor" not in model_card(facts(space))


def test_the_card_of_a_run_that_ignores_words_promises_nothing_of_transformers() -> None:
    config = load_config(preset="bert", overrides={"data.ignore_words": ["costner", "<b>", "a|b"]})
    card, usual = model_card(facts(config=config)), model_card(facts())
    assert "from transformers import pipeline" in usual
    assert "from transformers import pipeline" not in card
    assert "transformers alone reads them" in card
    assert "transformers alone reads them" not in usual
    assert "costner" in rendered(body(card))
    assert "<b>" not in rendered(body(card))
