"""Low-rank adapters in the encoder: what trains, what is saved, and that nobody needs peft afterwards."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import attentune
from attentune.config import Config, load_config, to_flat
from attentune.inference.predictor import Predictor
from attentune.models.build import build_model, load_tokenizer
from attentune.models.slots import merge_adapters
from attentune.training.run import train
from helpers.samples import settings
from helpers.tiny import FAMILIES
from helpers.tiny_models import TWO, build, encoded

Tiny = Callable[..., Path]
LORA = {"rank": 3, "alpha": 6.0, "dropout": 0.0}
TEXTS = ("The movie was not unwatchable.", "Birds!")


@pytest.fixture
def config(tiny: Tiny, tmp_path: Path) -> Callable[..., Config]:
    """`config("ssa-hybrid", **changes)`: a tiny run with adapters."""

    def made(preset: str, *, run: str = "run", **changes: Any) -> Config:
        options = {"output_dir": str(tmp_path / run), "precision": "fp32", "learning_rate": 1e-2}
        options |= {"lora_rank": 3, "lora_dropout": 0.1} | changes
        trained = {f"training.{name}": value for name, value in options.items()}
        return load_config(preset=preset, overrides=settings(tmp_path, tiny("bert")) | trained)

    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_fresh_adapters_say_what_the_encoder_said_and_merged_ones_what_they_said(family: str, tiny: Tiny) -> None:
    plain_settings = replace(Config().model, name_or_path=str(tiny(family)))
    tokenizer = load_tokenizer(plain_settings)
    model = build_model(plain_settings, TWO, tokenizer, max_length=64, is_pair=False, seed=1, lora=LORA).eval()
    trainable = {name for name, p in model.named_parameters() if p.requires_grad and name.startswith("encoder.")}
    assert trainable
    assert all(".lora_" in name for name in trainable)
    batch = encoded(tokenizer, *TEXTS)
    with torch.no_grad():
        plain = AutoModel.from_pretrained(tiny(family)).eval()(**batch).last_hidden_state
        torch.testing.assert_close(model.encode(**batch).last_hidden_state, plain, rtol=1e-5, atol=1e-5)
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.normal_(std=0.3)
        before = model(**batch).logits
        assert (model.encode(**batch).last_hidden_state - plain).abs().max() > 1e-2
        adapters = merge_adapters(model)
        torch.testing.assert_close(model(**batch).logits, before, rtol=1e-4, atol=1e-4)
    assert adapters is not None
    assert len(adapters) == len(trainable)
    assert not any("lora" in name or "base_layer" in name for name in model.state_dict())
    assert (model.config.lora, merge_adapters(model)) == (None, None)


def test_a_run_ends_as_a_plain_one_with_its_adapters_beside_it(config, tiny, tmp_path):
    result = train(config("ssa-hybrid"))
    run = tmp_path / "run"
    weights, base = load_file(run / "model.safetensors"), AutoModel.from_pretrained(tiny("bert")).state_dict()
    changed = {name for name, value in base.items() if not torch.equal(weights.get(f"encoder.{name}", value), value)}
    assert changed == {
        f"encoder.layer.{layer}.attention.self.{part}.weight" for layer in range(3) for part in ("query", "value")
    }
    assert result.train["trainable_parameters"] < 0.5 * result.train["parameters"]
    assert json.loads((run / "config.json").read_text())["lora"] is None
    # peft puts them on the base encoder again.
    wrapped = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tiny("bert")), str(run / "adapter")).eval()
    modes = {path.stat().st_mode for path in (run / "adapter").iterdir()}
    assert len(modes) == 1
    saved = Predictor.load(run)
    batch = encoded(saved.tokenizer, *TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(
            wrapped(**batch).last_hidden_state, saved.model.encode(**batch).last_hidden_state, rtol=1e-4, atol=1e-5
        )
    assert attentune.evaluate(run)["validation"] == pytest.approx(result.scores["validation"])
    # A checkpoint has them apart, and can be asked, too; a new run can begin with either.
    checkpoint = run / "checkpoint-12"
    assert Predictor.load(checkpoint).model.config.lora["rank"] == 3
    rows = [row["probabilities"]["good"] for row in attentune.predict(checkpoint, list(TEXTS))]
    assert rows == pytest.approx(
        [row["probabilities"]["good"] for row in attentune.predict(run, list(TEXTS))], abs=1e-5
    )
    flat = {name: value for name, value in to_flat(config("bert", run="next", max_steps=1)).items() if name != "preset"}
    assert train(load_config(preset="bert", overrides={**flat, "model.name_or_path": str(checkpoint)})).scores


def test_bf16_with_flip_labels_and_the_best_weights(config: Callable[..., Config], tmp_path: Path) -> None:
    result = train(config("ssa-co", precision="bf16", load_best_model_at_end=True))
    assert attentune.evaluate(tmp_path / "run")["validation"] == pytest.approx(result.scores["validation"])


def test_a_model_without_adapters_has_nothing_to_merge(tiny: Tiny) -> None:
    model, _ = build(tiny("bert"))
    assert merge_adapters(model) is None
