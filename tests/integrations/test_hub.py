"""Cards of exports, and uploads to a server that speaks the hub's protocol: what is uploaded, and what never is."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attentune.config import load_config
from attentune.integrations.hub import ONNX_PAIR_USE, ONNX_USE, STOCK_USE, copy_card
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from helpers.hub_server import TOKEN, HubServer, hub_server

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


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


def elsewhere(hub: HubServer, home: Path, *words: object, **environment: str) -> tuple[int, str, str]:
    """Run Python in a process of its own, since the hub's address is read when its package is imported."""
    settings = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
    around = {**os.environ, **settings, **environment}
    del around["HF_HUB_OFFLINE"]
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.integration
def test_a_run_is_uploaded_without_its_rows(hub: HubServer, run: Path, tmp_path: Path) -> None:
    words = ["-m", "attentune", "export", run, "--format", "transformers", "--push_to_hub", "me/reviews", "--private"]
    status, out, err = elsewhere(hub, tmp_path / "home", *words)
    assert status == 0, err
    assert hub.repositories == {"me/reviews": "private"}
    files = hub.files["me/reviews"]
    assert set(files) == {"README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert f"{hub.address}/me/reviews: 5 files uploaded: README.md, config.json, model.safetensors" in out
    # Neither in a file nor in a request, which would also have samples of files.
    sent = b"\n".join([*hub.received, *files.values()])
    for text in (*SECRETS, "Zanzibar", "quokkas", "id-3", str(run)):
        assert text.encode() not in sent
    assert b"predictions_" not in sent
    # What was uploaded loads, with transformers alone.
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert (type(model).__name__, model.config.id2label) == ("BertForSequenceClassification", {0: "bad", 1: "good"})
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 128
    card = files["README.md"].decode()
    for part in ("| validation | `accuracy` |", "95 % interval", "## Baselines", "pipeline("):
        assert part in card
    assert "- warning: validation: 12 rows also in train (100.0 %)" in card.replace("&#58;", ":")


PUSH = """
import sys
from pathlib import Path
from attentune.errors import AttentuneError
from attentune.integrations.hub import push_folder
try:
    print(push_folder(Path(sys.argv[1]), sys.argv[2]))
except AttentuneError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.integration
def test_uploads_again_and_refusals_of_the_hub(hub: HubServer, tmp_path: Path) -> None:
    folder, home = tmp_path / "folder", tmp_path / "home"
    (folder / "onnx").mkdir(parents=True)
    (folder / "onnx" / "model.onnx").write_bytes(b"graph")
    (folder / "README.md").write_text("---\nlibrary_name: transformers.js\n---\n")
    for text in ("first", "second"):
        (folder / "config.json").write_text(text)
        status, out, err = elsewhere(hub, home, "-c", PUSH, folder, "me/x")
        assert status == 0, err
        assert out == f"('{hub.address}/me/x', ('README.md', 'config.json', 'onnx/model.onnx'))\n"
        assert hub.files["me/x"]["config.json"] == text.encode()
    assert hub.repositories == {"me/x": None}
    assert hub.files["me/x"]["onnx/model.onnx"] == b"graph"
    _, _, err = elsewhere(hub, home, "-c", PUSH, folder, "me/y", HF_TOKEN="hf_wrong")
    assert f"ExportError: --push_to_hub: {hub.address} refused me/y with status 401: " in err
    assert "The token is invalid or expired: log in again with hf auth login. Nothing was committed." in err
    hub.refuse = 403
    _, _, err = elsewhere(hub, home, "-c", PUSH, folder, "other/x")
    assert "refused other/x with status 403" in err
    assert "needs the right to write to this name" in err
    assert set(hub.files) == {"me/x"}
    _, _, err = elsewhere(hub, home, "-c", PUSH, folder, "me/x", HF_ENDPOINT="http://127.0.0.1:9")
    assert "ExportError: --push_to_hub: me/x could not be uploaded to http://127.0.0.1:9: " in err


@pytest.mark.parametrize(
    ("token", "offline", "told"),
    [
        (None, False, "found no token of the hub, expected one with the right to write."),
        (TOKEN, True, "HF_HUB_OFFLINE is set, so that the hub is not contacted; unset it"),
    ],
)
def test_what_is_refused_before_any_work(tmp_path: Path, monkeypatch, attentune, token, offline, told) -> None:
    monkeypatch.setattr("attentune.integrations.hub.get_token", lambda: token)
    monkeypatch.setattr("attentune.integrations.hub.HF_HUB_OFFLINE", offline)
    err = attentune.refused("export", tmp_path / "no-run", "--push_to_hub", "me/x")
    assert told in err
    assert "no-run" not in err, "the run has not been looked for"


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
