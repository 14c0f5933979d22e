"""The table of known encoders: sizes are those of the published configurations; what is on this machine is found."""

from pathlib import Path
from typing import Any

import pytest

from attentune.errors import ConfigError
from attentune.models.encoder_list import encoder_facts, known_encoders
from helpers.tiny import FAMILIES

# What the published config.json of each encoder has that the defaults of its family do not.
_ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_DEBERTA = {
    **_BASE,
    "vocab_size": 128100,
    "num_hidden_layers": 12,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "embedded": {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536},
    "google-bert/bert-base-uncased": {},
    "google-bert/bert-base-german-cased": {"vocab_size": 30000},
    "google-bert/bert-base-multilingual-cased": {"vocab_size": 119547},
    "FacebookAI/roberta-base": _ROBERTA,
    "distilbert/distilroberta-base": {**_ROBERTA, "num_hidden_layers": 6},
    "distilbert/distilbert-base-uncased": {},
    "distilbert/distilbert-base-multilingual-cased": {"vocab_size": 119547},
    "google/electra-small-discriminator": {},
    "google/electra-base-discriminator": {**_BASE, "embedding_size": 768},
    "albert/albert-base-v2": _BASE,
    "sentence-transformers/all-mpnet-base-v2": {"vocab_size": 30527, "max_position_embeddings": 514},
    "microsoft/deberta-v3-base": _DEBERTA,
    "microsoft/deberta-v3-small": {**_DEBERTA, "num_hidden_layers": 6},
    "microsoft/mdeberta-v3-base": {**_DEBERTA, "vocab_size": 251000},
    "answerdotai/ModernBERT-base": {},
    "intfloat/multilingual-e5-small": {"vocab_size": 250037, "hidden_size": 384, "intermediate_size": 1536},
    "FacebookAI/xlm-roberta-base": {**_ROBERTA, "vocab_size": 250002},
}
KNOWN = {facts.name: facts for facts in known_encoders()}


def test_each_has_its_facts() -> None:
    assert KNOWN.keys() == CONFIGURATIONS.keys()
    for facts in KNOWN.values():
        assert None not in (facts.languages, facts.license, facts.family, facts.tried), facts.name
        assert facts.tried in ("trained", "family")
        assert (facts.frozen is None) == (facts.seconds is None) == (facts.tried == "family"), facts.name
        assert facts.family in FAMILIES
    measured = [facts.frozen for facts in KNOWN.values() if facts.frozen is not None]
    sizes = [facts.parameters or 0 for facts in KNOWN.values() if facts.frozen is None]
    assert [facts.frozen for facts in KNOWN.values()][: len(measured)] == sorted(measured, reverse=True)
    assert sizes == sorted(sizes)
    assert len([facts.first for facts in KNOWN.values() if facts.first]) == 3


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_sizes_are_those_of_the_configuration(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModel

    facts = KNOWN[name]
    config = AutoConfig.for_model(facts.family, **CONFIGURATIONS[name])
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert facts.parameters == pytest.approx(sum(weight.numel() for weight in model.parameters()) / 1e6, abs=0.06)
    assert (facts.layers, facts.width) == (config.num_hidden_layers, config.hidden_size)
    unused = 2 if facts.family in ("roberta", "xlm-roberta", "mpnet") else 0
    assert facts.longest == config.max_position_embeddings - unused


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny, variable: str) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    cache = tmp_path if variable == "HF_HUB_CACHE" else tmp_path / "hub"
    snapshots = cache / "models--FacebookAI--xlm-roberta-base" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / "abc").symlink_to(tiny("xlm-roberta"))
    torn = cache / "models--roberta-base" / "snapshots" / "def"
    torn.mkdir(parents=True)
    (torn / "config.json").write_text("{}")  # without weights
    (found, missing) = encoder_facts(["xlm-roberta-base", "FacebookAI/roberta-base"])
    assert (found.name, found.at_hand, found.folder) == ("FacebookAI/xlm-roberta-base", "cache", str(snapshots / "abc"))
    assert (missing.at_hand, missing.folder) == ("no", None)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_folder(tiny, family: str) -> None:
    from transformers import AutoModel

    from attentune.models.saving import readable_positions

    folder = tiny(family)
    (facts,) = encoder_facts([str(folder)])
    model = AutoModel.from_pretrained(folder)
    assert (facts.family, facts.at_hand, facts.languages, facts.license) == (family, "folder", None, None)
    assert (facts.layers, facts.width) == (model.config.num_hidden_layers, model.config.hidden_size)
    assert facts.longest == readable_positions(model)
    assert facts.without_network == f"copy the folder {folder}"


def test_what_is_no_encoder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"its config.json is not that of an encoder"):
        encoder_facts([str(tmp_path)])
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (facts,) = encoder_facts([str(tmp_path)])
    assert (facts.layers, facts.longest) == (None, None)
    with pytest.raises(ConfigError) as error:
        encoder_facts(["robreta-base", "nix/nix", "embedded"])
    assert len(error.value.problems) == 2
    assert "Did you mean 'roberta-base'" in error.value.problems[0]
