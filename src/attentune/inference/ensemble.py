"""Ensembles: run folders whose members are models and baselines, combined by a `Fusion`.

A member is a model, or a bag of models that were trained on different folds. `ensemble.json` lists the folders of each
member, relative to its own folder, so that an ensemble can be moved or copied as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from attentune.data.dataset import TASK_TYPES, LabelSpace, TaskData
from attentune.errors import CheckpointError
from attentune.inference.fusion import Fusion, mean_logits
from attentune.inference.predictor import Predictor, saved_config
from attentune.inference.scoring import Evaluator
from attentune.io.files import read_json, write_text
from attentune.metrics.rejection import energy
from attentune.results import check_fields, to_json

ENSEMBLE_FILE = "ensemble.json"
# Members stay in memory after their first prediction if their weights take no more bytes than this together;
# otherwise each is loaded when it predicts.
KEPT_BYTES = 4 << 30


def save_ensemble(
    folder: str | Path,
    members: Mapping[str, Sequence[str | Path]],
    fusion: Fusion,
    label_space: LabelSpace,
    is_pair: bool,
) -> None:
    """Write `ensemble.json`, which makes a folder the run folder of an ensemble of members inside it."""
    home = Path(folder).absolute()
    content = {
        "members": [
            {"name": name, "folders": [(home / run).relative_to(home).as_posix() for run in members[name]]}
            for name in fusion.members
        ],
        "fusion": dataclasses.asdict(fusion),
        "label_space": dataclasses.asdict(label_space),
        "is_pair": bool(is_pair),
    }
    write_text(home / ENSEMBLE_FILE, to_json(content))


class _LoadedMembers:
    """Loads the folders of an ensemble, and keeps them in memory if all of them fit."""

    def __init__(self, home: Path, folders: Sequence[str], label_space: LabelSpace, *, is_pair: bool) -> None:
        self._home, self._space, self._is_pair = home, label_space, is_pair
        weights = [file for folder in folders for file in (home / folder).glob("*.safetensors")]
        self.keeps = sum(file.stat().st_size for file in weights) <= KEPT_BYTES
        self._loaded: dict[str, Predictor] = {}

    def load(self, folder: str) -> Predictor:
        if folder in self._loaded:
            return self._loaded[folder]
        run = Predictor.load(self._home / folder)
        same = (run.label_space.task_type, run.label_space.names) == (self._space.task_type, self._space.names)
        if not same or run.is_pair != self._is_pair or isinstance(run, EnsemblePredictor):
            raise CheckpointError(
                f"{run.folder}: is a member of {self._home}, but predicts other labels, reads"
                f" {'single texts' if self._is_pair else 'pairs'} or is an ensemble itself. Use a whole copy of the"
                " ensemble's folder, or make it again with attentune auto."
            )
        if self.keeps:
            self._loaded[folder] = run
        return run


@dataclass(frozen=True)
class EnsemblePredictor(Predictor):
    members: Mapping[str, tuple[str, ...]]  # by the fusion's members, their run folders, relative to the ensemble's
    fusion: Fusion  # combines their logits
    pairs: bool
    loaded: _LoadedMembers = field(repr=False, compare=False)

    @property
    def kind(self) -> str:
        return f"ensemble of {len(self.members)}"

    @property
    def is_pair(self) -> bool:
        return self.pairs

    @property
    def instead(self) -> str:
        return (
            "Train one that learns from the ensemble (attentune auto --deliver single), or name the folder of a member:"
            f" {self.folder / self.folders[0]}"
        )

    @property
    def folders(self) -> list[str]:
        """The run folders of all members."""
        return [folder for folders in self.members.values() for folder in folders]

    def evaluator(self, data: TaskData, *, precision: str | None = None) -> EnsembleEvaluator:
        """Make an evaluator of these rows; the precision applies to all members that are models."""
        data = self.as_read(data)
        return EnsembleEvaluator(
            splits=data.splits,
            label_space=self.label_space,
            metrics=data.metrics,
            rejection=self.rejection,
            ensemble=self,
            precision=precision,
        )


@dataclass(kw_only=True)
class EnsembleEvaluator(Evaluator):
    """Predicts and scores splits with an ensemble, one run after the other."""

    ensemble: EnsemblePredictor
    precision: str | None
    cut: dict[str, np.ndarray] = field(default_factory=dict)  # for each predicted split

    def cut_lengths(self, split: str) -> np.ndarray:
        """Return (N,) the tokens that some member reads of a row that is longer, else 0."""
        return self.cut.get(split, super().cut_lengths(split))

    def compute_logits(self, split: str, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Predict with each run and combine the logits; `progress` counts a row once all runs have predicted it."""
        rows, task_type = self.splits[split], self.label_space.task_type
        by_member, energies, cut = {}, [], super().cut_lengths(split)
        done, runs = 0, len(self.ensemble.folders)

        def add(count: int) -> None:
            nonlocal done
            before, done = done // runs, done + count
            if progress is not None and done // runs > before:
                progress(done // runs - before)

        for name, folders in self.ensemble.members.items():
            bag = []
            for folder in folders:
                run = self.ensemble.loaded.load(folder)
                data = TaskData(split, run.label_space, tuple(self.metrics), {split: rows})
                made = run.evaluator(data, precision=self.precision)
                bag.append(made.predict(split, add))
                cut = np.maximum(cut, made.cut_lengths(split))
                self.ensemble.read.infrequent |= run.read.infrequent
            by_member[name] = mean_logits(bag, task_type)
            # The mean of each model's, as out-of-fold scores are of one: the score of their mean would be lower where
            # they disagree.
            energies.append(np.mean([energy(logits_NC) for logits_NC in bag], axis=0))
        self.vectors[split] = np.column_stack(energies)
        self.cut[split] = cut
        self.ensemble.read.add(cut)
        return self.ensemble.fusion.apply(by_member)


def load_run(folder: Path) -> EnsemblePredictor:
    """Load the run folder of an ensemble; its members are loaded when they predict."""
    file = folder / ENSEMBLE_FILE
    try:
        content = read_json(file)
        fusion = Fusion.from_json(content["fusion"])
        space = read_label_space(content["label_space"])
        members = {entry["name"]: tuple(entry["folders"]) for entry in content["members"]}
        _check_folders(members)
        names = [entry["name"] for entry in content["members"]]
        if names != list(fusion.members) or fusion.task_type != space.task_type:
            raise ValueError("its members and labels are not those of its fusion")
        pairs = content["is_pair"]
        if not isinstance(pairs, bool):
            raise ValueError(f"is_pair: got {pairs!r}, expected true or false")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{file}: does not describe an ensemble: {reason}. Use another copy.") from error
    folders = [name for names in members.values() for name in names]
    if missing := [name for name in folders if not (folder / name).is_dir()]:
        raise CheckpointError(
            f"{folder}: the ensemble's member {missing[0]} is missing; use a whole copy of the folder."
        )
    loaded = _LoadedMembers(folder, folders, space, is_pair=pairs)
    return EnsemblePredictor(folder, saved_config(folder), space, members, fusion, pairs, loaded)


def read_label_space(content: Any) -> LabelSpace:
    """Read the labels of a baseline or an ensemble from its file."""
    names, thresholds = content["names"], content["thresholds"]
    space = LabelSpace(
        content["task_type"],
        tuple(names),
        content["ordinal_prediction"],
        None if thresholds is None else tuple(map(float, thresholds)),
    )
    check_fields(LabelSpace, vars(space))
    if space.task_type not in TASK_TYPES or not all(isinstance(name, str) for name in names):
        raise ValueError(f"label_space: got {content}, expected a task type of {', '.join(TASK_TYPES)}, and names")
    count = {"classification": 1, "ordinal": len(space.names) - 1, "multi_label": len(space.names)}
    if thresholds is not None and (
        len(thresholds) != count.get(space.task_type) or not np.isfinite(np.array(space.thresholds)).all()
    ):
        raise ValueError(f"label_space: got the thresholds {thresholds}, which do not fit its {len(names)} labels")
    return space


def _check_folders(members: Mapping[str, tuple[str, ...]]) -> None:
    for name, folders in members.items():
        for folder in folders:
            path = PurePosixPath(folder)
            if path.is_absolute() or ".." in path.parts or "\\" in folder:
                raise ValueError(f"a member's folder: got {folder!r}, expected one inside the ensemble's folder")
        if not folders:
            raise ValueError(f"the member {name!r} has no folders")
