"""Saved ensembles of tiny models whose weights are random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.config import DataConfig, to_yaml
from attentune.data.dataset import LabelSpace
from attentune.inference.ensemble import save_ensemble
from attentune.inference.fusion import Fusion
from attentune.models.saving import save_model
from helpers.explain_runs import ON_CPU, SPACES
from helpers.tiny_models import build

MEMBERS = {"bert": 2, "roberta": 1}  # encoders, and runs of each


def write_run_config(
    folder: Path, model: dict[str, Any] | None = None, *, data: DataConfig | None = None, **training: Any
) -> None:
    """Write a `config.yaml` with these settings of model and training."""
    config = replace(ON_CPU, data=data or ON_CPU.data, model=replace(ON_CPU.model, **(model or {})))
    config = replace(config, training=replace(config.training, **training))
    (folder / "config.yaml").write_text(to_yaml(config))


def saved_model(
    folder: Path, encoder: Path, space: LabelSpace, *, is_pair: bool = False, seed: int = 1, **model: Any
) -> Path:
    """Save an untrained model as a run folder."""
    folder.mkdir(parents=True)
    built, tokenizer = build(encoder, label_space=space, is_pair=is_pair, max_length=64, seed=seed, **model)
    save_model(built, tokenizer, folder)
    write_run_config(folder)
    return folder


def saved_members(
    folder: Path, tiny: Callable[[str], Path], space: LabelSpace, *, is_pair: bool, members: dict[str, int]
) -> dict[str, Sequence[Path]]:
    """Save the runs of members that are called like their encoders."""
    return {
        name: [
            saved_model(folder / f"members/{name}/fold-{k}", tiny(name), space, is_pair=is_pair, seed=10 * k)
            for k in range(1, runs + 1)
        ]
        for name, runs in members.items()
    }


def saved_ensemble(
    folder: Path,
    tiny: Callable[[str], Path],
    kind: str = "classification",
    *,
    data: DataConfig | None = None,
    members: dict[str, int] | None = None,
    space: LabelSpace | None = None,
) -> Path:
    """Save an ensemble with the weights 0.75 and 0.25 as a run folder; `kind` as in `helpers.explain_runs`."""
    space, is_pair, folder = space or SPACES[kind], kind == "pair", Path(folder)
    names = members or MEMBERS
    runs = saved_members(folder, tiny, space, is_pair=is_pair, members=names)
    weights = dict(zip(names, (0.75, 0.25), strict=False))
    save_ensemble(folder, runs, Fusion.weighted("weights", weights, space.task_type), space, is_pair)
    write_run_config(folder, data=data)
    return folder
