"""transformers' pipeline says of a saved model what Attentune says: every preset, family, kind of task and pair."""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

import attentune  # noqa: F401  (registers the model)
from attentune.config import HeadConfig, ModelConfig, load_config, preset_names
from attentune.data.rows import LabelSpace
from attentune.evaluation.saved import predict
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import save_model
from tiny import FAMILIES
from tiny_models import FIRST, LONG, SECOND, TWO, build

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
    folder.mkdir(exist_ok=True)
    model, tokenizer = build(tiny(family, layers=4), label_space=space, loss=loss, **options)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("encoder."):
                weight.add_(0.2 * torch.randn(weight.shape, generator=generator))
    save_model(model, tokenizer, folder)
    (folder / "config.yaml").write_text("training: {precision: fp32}\n")
    return str(folder)


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
            found = {part["label"]: part["score"] for part in answer}
            assert found == pytest.approx(wanted["probabilities"], abs=TOLERANCE)


@pytest.mark.parametrize(("family", "preset"), list(zip(cycle(FAMILIES), preset_names())))
def test_every_preset_on_single_texts(tiny: Tiny, tmp_path: Path, family: str, preset: str) -> None:
    settings = load_config(preset=preset).model
    check(saved(tmp_path, tiny, family, THREE, settings=settings), TEXTS[:4])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_pairs(tiny: Tiny, tmp_path: Path, family: str) -> None:
    check(saved(tmp_path, tiny, family, THREE, is_pair=True), *zip(*PAIRS, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_pairs_that_are_read_apart(tiny: Tiny, tmp_path: Path, family: str) -> None:
    settings = load_config(preset="task-attention").model
    run = saved(tmp_path, tiny, family, is_pair=True, max_length=24, settings=settings)
    pairs = [*PAIRS, (LONG, LONG), (MANY_WORDS, FIRST), (FIRST, MANY_WORDS), (MANY_WORDS, MANY_WORDS)]
    check(run, *zip(*pairs, strict=True))
    with pytest.raises(ValueError, match="if each holds two texts"):
        pipeline("text-classification", model=run)(FIRST)


@pytest.mark.parametrize(
    ("space", "loss"),
    [
        (TWO, "auto"),
        (TWO, "binary-cross-entropy"),
        (THREE, "focal"),
        (THREE, "auto"),
        (SCORE, "auto"),
        (SCORE, "pearson"),
        (STARS, "auto"),
        (STARS, "corn"),
        (SETS, "auto"),
    ],
)
def test_every_kind_of_task(tiny: Tiny, tmp_path: Path, space: LabelSpace, loss: str) -> None:
    check(saved(tmp_path / "one", tiny, "bert", space, loss), TEXTS)
    check(saved(tmp_path / "two", tiny, "roberta", space, loss, is_pair=True), *zip(*PAIRS, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_long_texts_are_cut_where_ours_are(tiny: Tiny, tmp_path: Path, family: str) -> None:
    check(saved(tmp_path / "one", tiny, family, max_length=24), [MANY_WORDS, LONG, FIRST])
    run = saved(tmp_path / "two", tiny, family, is_pair=True, max_length=24)
    check(run, [MANY_WORDS, FIRST, LONG], [FIRST, MANY_WORDS, MANY_WORDS])
    assert AutoTokenizer.from_pretrained(run).model_max_length == 24


UNIGRAM = ("albert", "deberta-v2", "xlm-roberta")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNIGRAM])
def test_text_that_looks_like_a_special_token_stays_text(tiny: Tiny, tmp_path: Path, family: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny(family))
    texts = [f"A film {token} of {token}" for token in tokenizer.all_special_tokens]
    check(saved(tmp_path, tiny, family), texts)


def test_the_auto_class_loads_what_ours_loads(tiny: Tiny, tmp_path: Path) -> None:
    run = saved(tmp_path, tiny, "deberta-v2", THREE, settings=ModelConfig(head=HeadConfig("cls-mean")))
    ours, theirs = (
        kind.from_pretrained(run).state_dict()
        for kind in (AttentuneForSequenceClassification, AutoModelForSequenceClassification)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
