"""What an exported folder holds, and what never: its card, and no row of the data."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attentune.config import load_config
from attentune.integrations.exports import ONNX_PAIR_USE, ONNX_USE, STOCK_USE, copy_card
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train

Tiny = Callable[..., Path]
# Words that are in no file of the encoder, so that their traces would be those of the rows.
SECRETS = [f"Zanzibar{number} met quokkas" for number in range(12)]


@pytest.fixture(scope="module")
def run(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on secret texts, with predictions and records in its folder."""
    place = tmp_path_factory.mktemp("push")
    with (place / "secret.csv").open("w", newline="") as file:
        rows = [(f"id-{n}", text, "good" if n % 2 else "bad") for n, text in enumerate(SECRETS)]
        csv.writer(file).writerows([("id", "text", "label"), *rows])
    overrides = {
        "data.train_file": str(place / "secret.csv"),
        "data.validation_file": str(place / "secret.csv"),
        "data.text_column": "text",
        "data.label_column": "label",
        "model.name_or_path": str(tiny("bert")),
        "training.num_train_epochs": 1,
        "training.output_dir": str(place / "run"),
        "training.use_cpu": True,
        "training.precision": "fp32",
    }
    train(load_config(preset="bert", overrides=overrides), display=ProgressDisplay(quiet=True))
    assert (place / "run" / "predictions_validation.csv").is_file()
    return place / "run"


@pytest.mark.integration
def test_an_export_has_no_row_of_the_data(run: Path, tmp_path: Path, attentune) -> None:
    folder = tmp_path / "reviews"
    _, err = attentune.done("export", run, "--format", "transformers", "--output_dir", folder)
    assert f"hf upload NAME/REPO {folder}" in err
    names = {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in folder.iterdir()} == names
    content = b"\n".join(path.read_bytes() for path in folder.iterdir())
    for text in (*SECRETS, "Zanzibar", "quokkas", "id-3", str(run), "predictions_"):
        assert text.encode() not in content
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert (type(model).__name__, model.config.id2label) == ("BertForSequenceClassification", {0: "bad", 1: "good"})
    assert AutoTokenizer.from_pretrained(folder).model_max_length == 128
    card = (folder / "README.md").read_text()
    for part in ("| validation | `accuracy` |", "95 % interval", "## Baselines", "pipeline("):
        assert part in card
    assert "- warning: validation: 12 rows also in train (100.0 %)" in card.replace("&#58;", ":")


CARD = "---\nlibrary_name: attentune\n---\n\n# Stars\n\n## How to use\n\nimport attentune\n\n## Limits\n\n- One run.\n"


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("use", [STOCK_USE, ONNX_USE, ONNX_PAIR_USE])
def test_the_section_on_its_use_is_replaced_and_the_rest_stays(tmp_path: Path, use: str, pair: bool) -> None:
    copy_card(tmp_path, tmp_path / "none", use, pair=pair)
    assert not (tmp_path / "none").exists(), "of a run without a card"
    (tmp_path / "export").mkdir()
    (tmp_path / "README.md").write_text(CARD)
    copy_card(tmp_path, tmp_path / "export", use, pair=pair, library="some-library")
    made = (tmp_path / "export" / "README.md").read_text()
    assert made.startswith("---\nlibrary_name: some-library\n---\n\n# Stars\n\n## How to use\n\n")
    assert made.endswith("\n\n## Limits\n\n- One run.\n")
    assert not [text for text in ("import attentune", "{given}") if text in made]
    assert ("```js" in made) == (use is ONNX_USE), "transformers.js takes no pairs"
    assert ("onnx/model.onnx" in made) == (use in (ONNX_USE, ONNX_PAIR_USE))
    if use is STOCK_USE:
        assert ('{"text": "A first text.", "text_pair": "A second one."}' in made) == pair
