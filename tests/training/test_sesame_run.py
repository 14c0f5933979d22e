"""A run with blur and squeeze-and-excitation: sigma learns, and the saved run says what the run said."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from attentune import Predictor, evaluate
from attentune.config import load_config
from attentune.nn.blur import raw_of
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.samples import settings

Tiny = Callable[..., Path]
SIGMA = 0.5


def trained(folder: Path, encoder: Path, **changes: object) -> dict[str, dict[str, float]]:
    """The scores of a run in `folder`/run; sigma's raw number moves by about the learning rate a step."""
    learned = {"model__blur__sigma": SIGMA, "training__num_train_epochs": 1, **changes}
    overrides = settings(folder, encoder, preset="sesame", **learned)
    return train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True)).scores


@pytest.mark.parametrize(
    ("family", "learnable", "where"), [("bert", "layer", "context"), ("deberta-v2", "head", "scores")]
)
def test_sigma_is_learned_and_the_saved_run_repeats_the_scores(
    tiny: Tiny, tmp_path: Path, family: str, learnable: str, where: str
) -> None:
    scores = trained(tmp_path, tiny(family), model__blur__learnable=learnable, model__blur__where=where)
    run = tmp_path / "run"
    weights = load_file(run / "model.safetensors")
    moved = weights["blur.raw_sigma"] - raw_of(SIGMA)
    assert moved.shape == ((3, 4) if learnable == "head" else (3,))
    assert (moved != 0).all()  # how far the least one moves depends on the processor's rounding
    assert 1e-3 < moved.abs().max() < 0.1
    assert {name for name in weights if name.startswith("layer_mix.")} == {
        f"layer_mix.excitation.{part}.{kind}" for part in ("squeeze", "excite") for kind in ("weight", "bias")
    }
    assert (
        evaluate(run)["validation"]
        == scores["validation"]
        == json.loads((run / "metrics.json").read_text())["validation"]
    )
    model = Predictor.load(run).model
    assert model.blur_hooks.layers == 3
    assert torch.equal(model.blur.raw_sigma.detach().cpu(), weights["blur.raw_sigma"])


def test_what_is_blurred_is_part_of_what_is_learned(tiny: Tiny, tmp_path: Path) -> None:
    """The same run with another sigma, or none to learn, is another run: the loss says so."""
    losses = []
    for number, changes in enumerate(({}, {"model__blur__sigma": 2.0}, {"model__blur__where": "none"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        trained(folder, tiny("bert"), training__max_steps=2, **changes)
        lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if "loss" in line][-1])
        assert "blur.raw_sigma" not in load_file(folder / "run" / "model.safetensors")
    assert len(set(losses)) == 3
