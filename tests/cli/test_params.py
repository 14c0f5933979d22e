"""`attentune params`: the counts of the models themselves, and those of the paper."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attentune.config import load_config, model_preset_names
from attentune.inference.predictor import Predictor
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiny import FAMILIES
from helpers.tiny_models import build

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
SQUARE = 768 * 768


def counts(attentune: Command, *words: object) -> dict[str, Any]:
    status, out, err = attentune("params", *words, "--format", "json")
    assert status == 0, err
    return json.loads(out)


@pytest.fixture(scope="module")
def base_width(tiny: Tiny) -> Path:
    """An encoder as wide as BERT's base, and as shallow as can be."""
    return tiny("bert", hidden=768, layers=1)


SCORE, NARROW = ("--pairs", "--num_labels", 1), "--set=model.head.projection=768"


@pytest.mark.parametrize(
    ("flags", "attention", "projection"),
    [
        # Table 2 of the poster: SST-5 4.72 M, Quora 3.54 M, STS 11.2 M; its baseline's projections 0.59 M and 2.36 M.
        (("task-attention", "--num_labels", 5), 8, 0),
        (("task-attention", "--pairs"), 5, 1),
        (("task-attention", *SCORE), 15, 4),
        (("task-attention", *SCORE, "--set=model.head.bare=false", NARROW), 15, 1),
        (("bi-encoder-mean", "--pairs"), 0, 1),
        (("bi-encoder-mean", *SCORE), 0, 4),
        (("bi-encoder-mean", "--num_labels", 5), 0, 0),
    ],
)
def test_the_papers_counts_come_out(
    attentune: Command, base_width: Path, flags: tuple[object, ...], attention: int, projection: int
) -> None:
    found = counts(attentune, *flags, "--model_name_or_path", base_width)
    assert found["attention_matrices"] == attention * SQUARE
    assert found["projection_matrix"] == projection * SQUARE


@pytest.mark.integration
@pytest.mark.parametrize(
    ("preset", "family", "pairs"),
    [
        *((preset, "roberta", pairs) for preset in model_preset_names() for pairs in (False, True)),
        *(("sesame", family, False) for family in FAMILIES),  # weights that layers share, as ALBERT's do, count once
    ],
)
def test_parts_are_those_of_the_model_and_add_up(
    attentune: Command, tiny: Tiny, preset: str, family: str, pairs: bool
) -> None:
    found = counts(attentune, preset, "--model_name_or_path", tiny(family), *(["--pairs"] if pairs else []))
    model, _ = build(tiny(family), settings=load_config(preset=preset).model, is_pair=pairs)
    for part, count in found["parts"].items():
        own = getattr(model, part)
        expected = 0 if own is None else sum(weight.numel() for weight in own.parameters())
        assert count == {"parameters": expected, "trainable": expected}
    total = sum(weight.numel() for weight in model.parameters())
    assert found["total"] == {"parameters": total, "trainable": total}


def test_a_run_is_counted_as_it_was_trained(attentune: Command, tiny: Tiny, tmp_path: Path) -> None:
    overrides = settings(
        tmp_path, tiny("bert"), preset="task-attention", training__freeze_encoder=True, training__max_steps=1
    )
    train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    found = counts(attentune, tmp_path / "run")
    model = Predictor.load(tmp_path / "run").model
    encoder = sum(weight.numel() for weight in model.encoder.parameters())
    assert found["parts"]["encoder"] == {"parameters": encoder, "trainable": 0}
    assert found["total"]["parameters"] - found["total"]["trainable"] == encoder
    assert found["attention_matrices"] == 2 * 4 * 32 * 32


def test_a_table(attentune: Command, tiny: Tiny) -> None:
    status, out, _ = attentune("params", "task-attention", "--pairs", "--model_name_or_path", tiny("bert"))
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[2:9]] == [
        "encoder", "blur", "layer", "token", "head", "classifier", "total",
    ]  # fmt: skip
    assert "5,120 in the head's attention matrices (with 1,024 that the paper counts" in out
    status, out, _ = attentune("params", "bert", "--model_name_or_path", tiny("bert"))
    assert "matrices" not in out
