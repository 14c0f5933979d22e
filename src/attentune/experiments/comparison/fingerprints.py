"""Content fingerprints of the data and encoders of a comparison or search.

They detect files that changed in place, so that runs before and after the change are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from attentune.config import Config
from attentune.data.dataset import TaskData
from attentune.errors import CheckpointError
from attentune.experiments.comparison.records import CUSTOM_TASK
from attentune.results import ORIGINAL_TRAIN

# Maps a name, such as "train rows of cola" or "encoder embedded", to the first digits of a SHA-256.
DataFingerprints = dict[str, str]
# Digits of a hash: enough to distinguish contents, and short enough for a message.
_DIGITS = 16


def rows_of_task(config: Config) -> TaskData:
    """Load all rows of a task; runs of every training size and seed use subsets of them."""
    from attentune.data.load import load_data

    wanted = ("train", "validation") if config.data.task is not None else None
    # The same seed for all runs: without a validation file, the held-out rows depend on it.
    every = replace(config.data, max_train_samples=None, max_eval_samples=None, extra_train_files=None)
    if every.folds is not None:
        # The first fold of the first partition for all runs, so that a resumed or extended comparison agrees.
        every = replace(every, fold=1, fold_seed=1)
    return load_data(replace(every, extra_train_weights=None), seed=0, splits=wanted)


def fingerprint_extra_rows(task: str, data: TaskData, configs: Iterable[Config]) -> DataFingerprints:
    """Return the fingerprints of the extra training files of these configurations, one per file."""
    from attentune.data.extra import read_extra

    files = {file: config.data for config in configs for file, _ in config.data.extra_train}
    return {
        f"rows of {file} for {task}": read_extra(file, config, data.label_space, is_pair=data.is_pair)[0].fingerprint()[
            :_DIGITS
        ]
        for file, config in files.items()
    }


def fingerprint_rows(task: str, data: TaskData) -> DataFingerprints:
    """Return the fingerprints of a task's rows, by split."""
    prints = data.fingerprint()
    return {f"{split} rows of {task}": text[:_DIGITS] for split, text in prints.items() if split != ORIGINAL_TRAIN}


def fingerprint_encoders(configs: Iterable[Config]) -> DataFingerprints:
    """Return the fingerprints of the encoders of these configurations, one per encoder."""
    from attentune.models.build import encoder_fingerprint

    settings = {(config.model.name_or_path, config.model.revision): config.model for config in configs}
    return {
        f"encoder {name}": encoder_fingerprint(model_settings)[:_DIGITS]
        for (name, _), model_settings in settings.items()
    }


def check_unchanged(before: Mapping[str, str], now: Mapping[str, str], where: str) -> None:
    """Check that no fingerprint has changed."""
    changed = [name for name, content in now.items() if before.get(name, content) != content]
    changed = [name.removesuffix(f" of {CUSTOM_TASK}").removesuffix(f" for {CUSTOM_TASK}") for name in changed]
    if changed:
        raise CheckpointError(
            f"{where}: the {' and the '.join(changed)} changed since it was begun, so new runs could not be compared"
            " with those it has. Put back what was there, or name another --output_dir."
        )
