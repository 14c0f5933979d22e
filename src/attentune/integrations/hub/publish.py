"""The model card of an exported folder, and its upload to the Hugging Face hub or a server of the same protocol.

An exported folder has weights, settings, tokenizer and model card, and no row of the data: predictions and records stay
in the run folder unless `copy_predictions` puts them there.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from attentune import __version__
from attentune.errors import ConfigError, ExportError
from attentune.io.files import storage_errors, write_text
from attentune.training.card import CARD_FILE, HOME, NEEDS_ATTENTUNE, USE_HEADING

_PIPELINE = """With transformers; FOLDER is this folder, or its name on the hub.

```python
from transformers import pipeline

classify = pipeline("text-classification", model="FOLDER"{trust})
print(classify({given}, top_k=None, truncation=True))
```"""
STOCK_USE = _PIPELINE.replace("{trust}", "")
REMOTE_USE = (
    _PIPELINE.replace("{trust}", ", trust_remote_code=True")
    + "\n\n`trust_remote_code` runs the code of the model, which is in this folder."
)
SENTENCE_USE = """With sentence-transformers; FOLDER is this folder, or its name on the hub.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["A text.", "Another one."])
print(model.similarity(vectors, vectors))
```

If the run scored pairs by this similarity, its score is scale x similarity + offset, with the numbers in
`export.json`; of two classes, this is the logit of the second one."""
SETFIT_USE = """With SetFit; FOLDER is this folder, or its name on the hub. The classifier is a pickle, which runs code
when it is loaded: load only folders that you trust.

```python
from setfit import SetFitModel

model = SetFitModel.from_pretrained("FOLDER")
print(model.predict(["A text."]), model.predict_proba(["A text."]))
```"""
_ONNX_PYTHON = f"""In Python with onnxruntime, without PyTorch: `onnx/model.onnx`, `tokenizer.json` and `export.json`,
see [Exporting]({HOME}/exporting/)."""
# The pipeline of transformers.js takes single texts.
ONNX_PAIR_USE = _ONNX_PYTHON
ONNX_USE = f"""With transformers.js; FOLDER is this folder, or its name on the hub.

```js
import {{ pipeline }} from "@huggingface/transformers";

const classify = await pipeline("text-classification", "FOLDER", {{ dtype: "fp32" }});
console.log(await classify("A text.", {{ top_k: null }}));
```

{_ONNX_PYTHON}"""
_PAIR = '{"text": "A first text.", "text_pair": "A second one."}'


def copy_card(run: Path, folder: Path, use: str, *, pair: bool, library: str = "transformers") -> None:
    """Write the model card of an export; nothing if the run has no card."""
    source = run / CARD_FILE
    if source.is_file():
        text = source.read_text(encoding="utf-8")
        write_text(
            folder / CARD_FILE, card_of_export(text, use.replace("{given}", _PAIR if pair else '"A text."'), library)
        )


def card_of_export(card: str, use: str, library: str) -> str:
    """Return the card with another library and section on its use, and without the limit that it needs Attentune."""
    heading = re.escape(USE_HEADING)
    card = re.sub(r"^library_name: attentune$", f"library_name: {library}", card, count=1, flags=re.MULTILINE)
    card = card.replace(f"- {NEEDS_ATTENTUNE}\n", "")
    return re.sub(
        rf"^{heading}\n.*?(?=^## |\Z)",
        lambda match: f"{USE_HEADING}\n\n{use}\n\n",
        card,
        count=1,
        flags=re.MULTILINE | re.DOTALL,
    )


PREDICTIONS = "predictions_*.csv"


def check_push(name: str) -> None:
    """Check what an upload needs, without a request; call it before the work of an export."""
    problems = []
    try:
        validate_repo_id(name)
    except HFValidationError:
        problems.append(
            f"--push_to_hub: got {name!r}, expected the name of a repository: NAME/REPO, of letters, digits, '-', '_'"
            " and '.', such as me/reviews."
        )
    if HF_HUB_OFFLINE:
        problems.append("--push_to_hub: HF_HUB_OFFLINE is set, so that the hub is not contacted; unset it to upload.")
    if get_token() is None:
        problems.append(
            "--push_to_hub: found no token of the hub, expected one with the right to write. Log in with: hf auth login"
            f" (or set HF_TOKEN); tokens are made at {ENDPOINT}/settings/tokens."
        )
    if problems:
        raise ConfigError(problems)


def copy_predictions(run: Path, folder: Path) -> tuple[str, ...]:
    """Copy the predictions of a run's splits into a folder that will be uploaded; return their names."""
    files = sorted(run.glob(PREDICTIONS))
    if not files:
        raise ConfigError(f"--include_predictions: {run} has no {PREDICTIONS}; leave it out.")
    with storage_errors(folder):
        for file in files:
            shutil.copyfile(file, folder / file.name)
    return tuple(file.name for file in files)


def push_folder(folder: Path, name: str, *, private: bool | None = None) -> tuple[str, tuple[str, ...]]:
    """Upload all files of a folder as one commit, into a repository that is created if there is none."""
    check_push(name)
    files = tuple(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))
    api = HfApi(library_name="attentune", library_version=__version__)
    try:
        repository = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id,
            folder_path=folder,
            commit_message=f"Upload a model with Attentune {__version__}",
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        cure = {
            401: "The token is invalid or expired: log in again with hf auth login.",
            403: "The token needs the right to write to this name: make such a token, or use a name of your own.",
        }.get(status, "Try again later.")
        raise ExportError(
            f"--push_to_hub: {ENDPOINT} refused {name} with status {status}: {_first_line(error)} {cure} Nothing was"
            " committed."
        ) from error
    except Exception as error:  # the HTTP client has exception types of its own, and differs between versions
        raise ExportError(
            f"--push_to_hub: {name} could not be uploaded to {ENDPOINT}: {_first_line(error)} Check the network, and"
            " the YAML at the top of README.md, and try again. Nothing was committed."
        ) from error
    return str(repository), files


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0].rstrip('.:')}."
