"""A saved model is the same model: equal logits bit for bit, nothing but plain files, and no trace of the machine."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from attentune.config import HeadConfig
from attentune.data.dataset import LabelSpace
from attentune.errors import CheckpointError
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import label_space_of, load_model, save_model
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


@pytest.fixture
def saved(tiny: Tiny, tmp_path: Path) -> Path:
    """A saved tiny BERT of two labels, with a pooler."""
    folder = tmp_path / "run"
    folder.mkdir()
    save_model(*build(tiny("bert")), folder)
    return folder


def edit_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in content.items() if value != "DROP"}))


@pytest.mark.parametrize("pooler", ["auto", "fresh", "none"])
@every_family
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
def test_only_plain_files_are_written_and_none_names_the_machine(tiny: Tiny, tmp_path: Path, family: str) -> None:
    save_model(*build(tiny(family)), tmp_path)
    names = {file.name for file in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".txt", ".model"}
    folders = (tiny(family), tmp_path, Path.home(), Path(__file__).parent)
    for file in tmp_path.iterdir():
        assert not [folder for folder in folders if str(folder).encode() in file.read_bytes()], file.name


@pytest.mark.integration
@every_family
def test_saving_what_was_loaded_writes_the_same_files(tiny: Tiny, tmp_path: Path, family: str) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    save_model(*build(tiny(family)), tmp_path / "one")
    save_model(*load_model(tmp_path / "one"), tmp_path / "two")
    save_model(*load_model(tmp_path / "two"), tmp_path / "three")
    two, three = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("two", "three"))
    assert two.keys() == three.keys()
    assert [name for name in two if two[name] != three[name]] == []
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == two["model.safetensors"]
    assert (tmp_path / "one" / "config.json").read_bytes() == two["config.json"]


@pytest.mark.parametrize(
    "space",
    [
        LabelSpace("regression"),
        LabelSpace("ordinal", ("zero", "one", "two", "three")),
        LabelSpace("classification", tuple(f"label {n}" for n in range(23, 0, -1))),
        LabelSpace("classification", ("None", "", "naïve 😀", 'a "b", c', "10", "2")),
        LabelSpace("classification", ("only",)),
    ],
)
def test_labels_keep_their_names_and_their_order(tiny: Tiny, tmp_path: Path, space: LabelSpace) -> None:
    built = build(tiny("bert"), label_space=space, max_length=77, is_pair=True)
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


@pytest.mark.parametrize(
    "values",
    [
        {"encoder": None},
        {"encoder": {}},
        {"encoder": {"model_type": "nothing"}},
        {"head": {"kind": "nothing", "beta": 0.5, "with_pooler": False, "dropout": 0.1}},
        {"head": {"kind": "cls"}},
        {"head": {"kind": "mean", "beta": 0.5, "with_pooler": False, "dropout": 0.1}},  # the pooler is left over
        {"layer_mix": {"kind": "nothing"}},
        {"id2label": {"0": "a", "1": "b", "2": "c"}},
        {"special_token_ids": "x"},
    ],
)
def test_a_configuration_of_another_model_is_refused(saved: Path, values: dict[str, object]) -> None:
    edit_config(saved, **values)
    with pytest.raises(CheckpointError) as caught:
        load_model(saved)
    assert str(caught.value).startswith(f"{saved}: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights.pop("classifier.bias"),
        lambda weights: weights.pop("encoder.encoder.layer.1.output.dense.weight"),
        lambda weights: weights.update({"classifier.weight": torch.zeros(3, 32)}),
        lambda weights: weights.update({"classifier.extra": torch.zeros(2)}),
    ],
)
def test_weights_that_do_not_fit_are_refused(saved: Path, change: Callable[[dict], object]) -> None:
    weights = load_file(saved / "model.safetensors")
    change(weights)
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_model(saved)
    assert str(caught.value).startswith(f"{saved}: ")


def test_a_plain_encoder_is_no_run(tiny: Tiny) -> None:
    with pytest.raises(CheckpointError, match="holds a plain bert encoder"):
        load_model(tiny("bert"))


def test_a_copied_folder_loads_elsewhere(saved: Path, tmp_path: Path) -> None:
    before = logits_of(load_model(saved), FIRST)
    shutil.move(saved, tmp_path / "moved")
    assert torch.equal(logits_of(load_model(str(tmp_path / "moved")), FIRST), before)
