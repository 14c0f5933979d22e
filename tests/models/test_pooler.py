"""Which pooler [CLS] goes through: the checkpoint's own, unless its training went past it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from attentune.config import HeadConfig
from attentune.errors import ConfigError
from attentune.models.families import pooler_dense
from attentune.models.pooler import settle_pooler
from tiny_models import build

Tiny = Callable[..., Path]


def of_sentence_transformers(folder: Path) -> Path:
    (folder / "modules.json").write_text('[{"idx": 0, "type": "sentence_transformers.models.Transformer"}]')
    return folder


def has_own(folder: Path, pooler: str) -> bool:
    model, _ = build(folder, head=HeadConfig(pooler=pooler))
    return torch.equal(model.head.pooler.dense.weight, pooler_dense(AutoModel.from_pretrained(folder)).weight)


def test_a_checkpoint_of_sentence_transformers_gets_a_fresh_pooler(tiny: Tiny, tmp_path: Path) -> None:
    folder = tiny("bert", pooler=True)
    assert has_own(folder, "auto")
    copied = tmp_path / "encoder"
    copied.mkdir()
    for file in folder.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    of_sentence_transformers(copied)
    assert not has_own(copied, "auto")
    assert has_own(copied, "own")
    assert not has_own(copied, "fresh")


def test_own_needs_one(tiny: Tiny) -> None:
    folder = tiny("roberta", pooler=False)
    with pytest.raises(ConfigError, match=r"model\.head\.pooler: own, but the checkpoint of .* has no pooler"):
        build(folder, head=HeadConfig(pooler="own"))


@pytest.mark.parametrize(
    ("wanted", "has_pooler", "left_out", "settled"),
    [
        ("auto", True, False, "own"),
        ("auto", True, True, "fresh"),
        ("auto", False, False, "none"),
        ("auto", False, True, "none"),
        ("own", True, True, "own"),
        ("none", True, False, "none"),
        ("fresh", False, False, "fresh"),
    ],
)
def test_what_each_setting_comes_to(wanted: str, has_pooler: bool, left_out: bool, settled: str) -> None:
    assert settle_pooler(wanted, "x", has_pooler=has_pooler, left_out=left_out) == settled
