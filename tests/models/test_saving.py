"""A saved model is the same model: equal logits bit for bit, nothing but plain files, and no trace of the machine."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from attentune.config import HeadConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import label_space_of, load_model, save_model
from helpers.tiers import covering
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, LONG, build, logits_of

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)


def trained_a_little(built: tuple) -> None:
    """Give every weight a value of its own, so that nothing comes out right by being left fresh."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in built[0].parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture(scope="module")
def kept(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    save_model(*build(tiny("bert")), folder)
    return folder


@pytest.fixture
def saved(kept: Path, tmp_path: Path) -> Path:
    """A saved tiny BERT of two labels, with a pooler."""
    return shutil.copytree(kept, tmp_path / "run")


@covering("family, pooler", FAMILIES, ["auto", "fresh", "none"])
def test_saved_and_loaded_logits_are_equal_bit_for_bit(tiny: Tiny, tmp_path: Path, family: str, pooler: str) -> None:
    built = build(tiny(family), head=HeadConfig(pooler=pooler))
    trained_a_little(built)
    before = logits_of(built, FIRST, LONG)
    save_model(*built, tmp_path)
    torch.manual_seed(123)
    loaded = load_model(tmp_path)
    assert not loaded[0].training
    assert torch.equal(logits_of(loaded, FIRST, LONG), before)
    assert loaded[0].special_ids.tolist() == built[0].special_ids.tolist()
    assert loaded[1](LONG)["input_ids"] == built[1](LONG)["input_ids"]
    assert loaded[1].padding_side == loaded[1].truncation_side == "right"

    direct = AttentuneForSequenceClassification.from_pretrained(tmp_path).eval()
    assert torch.equal(logits_of((direct, built[1]), FIRST, LONG), before)
    assert direct.special_ids.tolist() == built[0].special_ids.tolist()


def test_weights_start_at_multiples_of_64_bytes_as_fresh_memory_does(tiny: Tiny, saved: Path) -> None:
    """Otherwise MKL's products of a single row differ in the last bit on AMD processors."""
    models = {
        "built": build(tiny("bert"))[0],
        "loaded": load_model(saved)[0],
        "from_pretrained": AttentuneForSequenceClassification.from_pretrained(saved),
        "warm start": build(saved)[0],
    }
    for name, model in models.items():
        tensors = (*model.named_parameters(), *model.named_buffers())
        assert not [key for key, tensor in tensors if tensor.data_ptr() % 64], name
    assert not [size for size in range(1, 2000, 7) if torch.empty(size).data_ptr() % 64]


@every_family
def test_only_plain_files_are_written_none_names_the_machine_and_what_was_loaded_writes_the_same(
    tiny: Tiny, tmp_path: Path, family: str
) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    for folder in (one, two, three):
        folder.mkdir()
    save_model(*build(tiny(family)), one)
    names = {file.name for file in one.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".txt", ".model"}
    folders = (tiny(family), tmp_path, Path.home(), Path(__file__).parent)
    for file in one.iterdir():
        assert not [folder for folder in folders if str(folder).encode() in file.read_bytes()], file.name
    save_model(*load_model(one), two)
    save_model(*load_model(two), three)
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in ("model.safetensors", "config.json"))
    assert {file.name: file.read_bytes() for file in two.iterdir()} == {
        file.name: file.read_bytes() for file in three.iterdir()
    }


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (LabelSpace("regression"), "regression"),
        (LabelSpace("ordinal", ("zero", "one", "two", "three")), "single_label_classification"),
        (LabelSpace("classification", tuple(f"label {n}" for n in range(150, 0, -1))), "single_label_classification"),
        (LabelSpace("classification", ("None", "", "naïve 😀", 'a "b", c', "10", "2")), "single_label_classification"),
        (LabelSpace("classification", ("LABEL_1", "LABEL_0")), "single_label_classification"),
        (LabelSpace("classification", ("only",)), None),
    ],
)
def test_labels_keep_their_names_and_their_order(tiny: Tiny, tmp_path: Path, space: LabelSpace, kind: str) -> None:
    built = build(tiny("bert"), label_space=space, max_length=77, is_pair=True)
    assert label_space_of(built[0].config) == space
    assert (built[0].config.num_labels, built[0].config.problem_type) == (space.num_labels, kind)
    if space.names:
        assert tuple(built[0].config.id2label.values()) == tuple(built[0].config.label2id) == space.names
    save_model(*built, tmp_path)
    model, tokenizer = load_model(tmp_path)
    assert label_space_of(model.config) == space
    assert (model.config.max_seq_length, model.config.is_pair) == (77, True)
    assert torch.equal(logits_of((model, tokenizer), FIRST), logits_of(built, FIRST))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_lacks_a_file_is_refused_and_the_file_named(saved: Path, missing: str) -> None:
    (saved / missing).unlink()
    with pytest.raises(CheckpointError, match=missing.replace(".", r"\.")) as caught:
        load_model(saved)
    assert str(saved) in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json, expected the folder of a finished run"):
        load_model(tmp_path / "none")


def without(name: str) -> Callable[[dict], object]:
    return lambda weights: weights.pop(name)


def with_zeros(name: str, *shape: int) -> Callable[[dict], object]:
    return lambda weights: weights.update({name: torch.zeros(*shape)})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"encoder": None}, marks=pytest.mark.integration),  # transformers names every model it has
        {"encoder": {}},
        {"encoder": {"model_type": "nothing"}},
        {"head": {"kind": "nothing", "beta": 0.5, "with_pooler": False, "dropout": 0.1}},
        {"head": {"kind": "cls"}},
        {"head": {"kind": "mean", "beta": 0.5, "with_pooler": False, "dropout": 0.1}},  # the pooler is left over
        {"layer_mix": {"kind": "nothing"}},
        {"id2label": {"0": "a", "1": "b", "2": "c"}},
        {"special_token_ids": "x"},
        without("classifier.bias"),
        without("encoder.encoder.layer.1.output.dense.weight"),
        with_zeros("classifier.weight", 3, 32),
        with_zeros("classifier.extra", 2),
    ],
)
def test_a_configuration_or_weights_of_another_model_are_refused(saved: Path, change: Any) -> None:
    if isinstance(change, dict):
        file = saved / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    else:
        weights = load_file(saved / "model.safetensors")
        change(weights)
        save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_model(saved)
    assert str(caught.value).startswith(f"{saved}: ")


def test_a_plain_encoder_is_no_run(tiny: Tiny) -> None:
    with pytest.raises(CheckpointError, match="holds a plain bert encoder"):
        load_model(tiny("bert"))
