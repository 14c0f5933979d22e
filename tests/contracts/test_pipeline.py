"""transformers' pipeline says of a saved model what Attentune says: every preset, family, kind of task and pair."""

import copy
import json
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, TextClassificationPipeline, pipeline

from attentune.config import load_config, model_preset_names
from attentune.data.dataset import LabelSpace
from attentune.inference.predictor import predict
from attentune.models.modeling import AttentuneForSequenceClassification
from helpers.tiers import covering, integration_unless, leading
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, SECOND, TWO
from helpers.tiny_runs import save_run

Tiny = Callable[..., Path]
THREE = LabelSpace("classification", ("no", "maybe: 1/2", "yes, <b>"))
SCORE, STARS = LabelSpace("regression"), LabelSpace("ordinal", ("low", "middle", "high"))
SETS = LabelSpace("multi_label", ("no", "maybe: 1/2", "yes, <b>"))
TEXTS = [FIRST, SECOND, LONG, "", "The film [SEP] was <s> fine."]
# A second text that is empty is left out by transformers, so that no pair remains; a space stays.
PAIRS = [(FIRST, SECOND), (LONG, FIRST), (SECOND, LONG), ("", FIRST), (SECOND, " "), ("", " ")]
MANY_WORDS = " ".join([LONG] * 12)
TOLERANCE = 1e-5


def saved(folder: Path, tiny: Tiny, family: str, space: LabelSpace = TWO, loss: str = "auto", **options: object) -> str:
    """The folder of a model whose slots are not as they begin, so that its answers differ."""
    save_run(tiny(family, layers=4), folder, label_space=space, loss=loss, **options)
    (folder / "config.yaml").write_text("training: {precision: fp32}\n")
    return str(folder)


def rethreshold(run: str, texts: Sequence[str]) -> list[float]:
    """Set thresholds at which what is predicted is another thing than what is likeliest, for some of these texts."""
    shares = np.array([list(one["probabilities"].values()) for one in predict(run, list(texts))])
    file = Path(run) / "config.json"
    config = json.loads(file.read_text())
    config["thresholds"] = ((shares.min(axis=0) + shares.max(axis=0)) / 2).tolist()
    if config["task_type"] == "classification":
        del config["thresholds"][0]
    file.write_text(json.dumps(config))
    return config["thresholds"]


def check(run: str, texts: Sequence[str], pairs: Sequence[str] | None = None, **options: object) -> None:
    """The pipeline's labels and scores are those of `attentune predict`, one by one and in batches."""
    classify = pipeline("text-classification", model=run)
    assert isinstance(classify.model, AttentuneForSequenceClassification)
    given = list(texts) if pairs is None else [{"text": a, "text_pair": b} for a, b in zip(texts, pairs, strict=True)]
    expected = predict(run, list(texts), None if pairs is None else list(pairs))
    for batch_size in (1, 4):
        answers = classify(given, top_k=None, truncation=True, batch_size=batch_size, **options)
        for answer, wanted in zip(answers, expected, strict=True):
            if "probabilities" not in wanted:
                assert answer == [{"label": "LABEL_0", "score": pytest.approx(wanted["prediction"], abs=TOLERANCE)}]
                continue
            if isinstance(wanted["prediction"], str):
                assert answer[0]["label"] == wanted["prediction"]
            else:
                assert {part["label"] for part in answer if part["predicted"]} == set(wanted["prediction"])
            found = {part["label"]: part["score"] for part in answer}
            assert found == pytest.approx(wanted["probabilities"], abs=TOLERANCE)


# Every second preset has every family.
@pytest.mark.parametrize(
    ("family", "preset"),
    [
        pytest.param(family, preset, marks=integration_unless(place % 2 == 0))
        for place, (family, preset) in enumerate(zip(cycle(FAMILIES), model_preset_names()))
    ],
)
def test_every_preset_on_single_texts(tiny: Tiny, tmp_path: Path, family: str, preset: str) -> None:
    settings = load_config(preset=preset).model
    check(saved(tmp_path, tiny, family, THREE, settings=settings), TEXTS[:4])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_pairs(tiny: Tiny, tmp_path: Path, family: str) -> None:
    check(saved(tmp_path, tiny, family, THREE, is_pair=True), *zip(*PAIRS, strict=True))


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_pairs_that_are_read_apart(tiny: Tiny, tmp_path: Path, family: str) -> None:
    settings = load_config(preset="task-attention").model
    run = saved(tmp_path, tiny, family, is_pair=True, max_length=24, settings=settings)
    pairs = [*PAIRS, (LONG, LONG), (MANY_WORDS, FIRST), (FIRST, MANY_WORDS), (MANY_WORDS, MANY_WORDS)]
    check(run, *zip(*pairs, strict=True))
    with pytest.raises(ValueError, match="this model compares two texts"):
        pipeline("text-classification", model=run)(FIRST)


@leading(
    "space, loss",
    [
        (TWO, "softmax-cross-entropy"),
        (THREE, "auto"),
        (SCORE, "auto"),
        (STARS, "corn"),
        (SETS, "auto"),
        (TWO, "auto"),
        (THREE, "focal"),
        (SCORE, "pearson"),
        (STARS, "auto"),
    ],
    fast=5,
)
def test_every_kind_of_task(tiny: Tiny, tmp_path: Path, space: LabelSpace, loss: str) -> None:
    check(saved(tmp_path / "one", tiny, "bert", space, loss), TEXTS)
    check(saved(tmp_path / "two", tiny, "roberta", space, loss, is_pair=True), *zip(*PAIRS, strict=True))


@covering("space, temperature", [TWO, SETS], [0.3, 1.0])
def test_thresholds_are_obeyed(tiny: Tiny, tmp_path: Path, space: LabelSpace, temperature: float) -> None:
    run = saved(tmp_path, tiny, "bert", space)
    plain = pipeline("text-classification", model=run)(TEXTS)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"calibration_temperature": temperature}))
    thresholds = rethreshold(run, TEXTS)
    check(run, TEXTS)
    classify, expected = pipeline("text-classification", model=run), predict(run, TEXTS)
    if space is TWO:
        labels = [wanted["prediction"] for wanted in expected]
        assert labels != [answer["label"] for answer in plain], "some answers change"
        assert [answer["label"] for answer in classify(TEXTS)] == labels
        assert [answer["label"] for (answer,) in classify(TEXTS, top_k=1)] == labels
        for answer, wanted in zip(classify(TEXTS), expected, strict=True):
            assert answer["score"] == pytest.approx(wanted["probabilities"][answer["label"]], abs=TOLERANCE)
            assert (wanted["probabilities"][space.names[1]] >= thresholds[0]) == (answer["label"] == space.names[1])
        return
    assert len({tuple(wanted["prediction"]) for wanted in expected}) > 1
    for answer, wanted in zip(classify(TEXTS, top_k=None), expected, strict=True):
        flags = [part["predicted"] for part in answer]
        assert flags == sorted(flags, reverse=True), "what is predicted comes first"
        assert [part["label"] for part in answer if part["predicted"]] == sorted(
            wanted["prediction"], key=lambda name: -wanted["probabilities"][name]
        )
    for answer, wanted in zip(classify(TEXTS), expected, strict=True):
        assert (answer["label"] in wanted["prediction"]) == bool(wanted["prediction"]) == answer["predicted"]


def test_ordered_classes_by_expected_value(tiny: Tiny, tmp_path: Path) -> None:
    run = saved(tmp_path, tiny, "bert", STARS)
    with torch.no_grad():  # the ends are likely, and the mean is in the middle
        model = AttentuneForSequenceClassification.from_pretrained(run)
        model.classifier.bias.copy_(torch.tensor([3.0, 0.0, 3.0]))
        model.config.ordinal_prediction = "expected-value"
        model.save_pretrained(run)
    answers, expected = pipeline("text-classification", model=run)(TEXTS), predict(run, TEXTS)
    assert [answer["label"] for answer in answers] == [wanted["prediction"] for wanted in expected]
    likeliest = [max(wanted["probabilities"], key=wanted["probabilities"].get) for wanted in expected]
    assert likeliest != [answer["label"] for answer in answers]
    check(run, TEXTS)


def test_other_models_get_transformers_own_answers(tiny: Tiny, tmp_path: Path) -> None:
    """For the task, its alias and a model that is handed over; scores as asked for stay theirs."""
    tokenizer = AutoTokenizer.from_pretrained(tiny("bert"))
    torch.manual_seed(0)
    plain = BertForSequenceClassification(BertConfig.from_pretrained(tiny("bert"), num_labels=3)).eval()
    base = TextClassificationPipeline(model=plain, tokenizer=tokenizer)
    for task in ("text-classification", "sentiment-analysis"):
        classify = pipeline(task, model=plain, tokenizer=tokenizer)
        for options in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": None}, {"function_to_apply": "none"}):
            assert classify(TEXTS, **options) == base(TEXTS, **options)
            assert classify(FIRST, **options) == base(FIRST, **options)
    run = saved(tmp_path / "run", tiny, "bert", THREE)
    ours, theirs = pipeline("sentiment-analysis", model=run), pipeline("text-classification", model=run)
    base = TextClassificationPipeline(model=theirs.model, tokenizer=theirs.tokenizer)
    for options in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": None}, {"function_to_apply": "none"}):
        assert ours(TEXTS, **options) == base(TEXTS, **options)
    assert ours(FIRST) == base(FIRST) == copy.copy(ours)(FIRST)


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_are_cut_where_ours_are(tiny: Tiny, tmp_path: Path, family: str) -> None:
    check(saved(tmp_path / "one", tiny, family, max_length=24), [MANY_WORDS, LONG, FIRST])
    run = saved(tmp_path / "two", tiny, family, is_pair=True, max_length=24)
    check(run, [MANY_WORDS, FIRST, LONG], [FIRST, MANY_WORDS, MANY_WORDS])
    assert AutoTokenizer.from_pretrained(run).model_max_length == 24
