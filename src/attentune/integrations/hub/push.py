"""Upload an exported folder to the Hugging Face hub, or to a server of the same protocol (`HF_ENDPOINT`).

An exported folder has weights, settings, tokenizer and model card, and no row of the data: predictions and records stay
in the run folder unless `copy_predictions` puts them there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from attentune import __version__
from attentune.errors import ConfigError, ExportError
from attentune.io.files import storage_errors

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
