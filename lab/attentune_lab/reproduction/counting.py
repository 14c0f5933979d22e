"""Counts of parameters by method and task: attention and projection matrices, or else the classifier.

Source: table 2 of the task-attention paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attentune.data.builtin import load_spec
from attentune.data.dataset import LabelSpace
from attentune.models.build import build_model, load_tokenizer
from attentune.models.counting import count_parameters
from attentune.runs.grid import methods_from, plan_grid, select_methods
from attentune.runs.records import Run
from attentune_lab.reproduction.recipe import Recipe


def count_parts(recipe: Recipe, encoder: str, overrides: Mapping[str, Any] | None = None) -> dict[str, dict[str, int]]:
    """Count the weights of untrained models' attention and projection matrices, or else of the classifier."""
    grid = plan_grid(
        tasks=recipe.tasks,
        methods=select_methods((), methods_from(recipe.methods, recipe.name)),
        seeds=(1,),
        overrides={
            "model.name_or_path": encoder,
            **recipe.settings,
            "data.task_settings": recipe.task_settings,
            **(overrides or {}),
        },
    )
    return {
        method: {task: _count(grid, Run(task, None, method, 1)) for task in recipe.tasks} for method in recipe.methods
    }


def _count(grid: Any, run: Run) -> int:
    config, spec = grid.config(run, Path("unused")), load_spec(run.task)
    space = LabelSpace(spec.task_type, spec.label_names)
    is_pair = any(split.pair is not None for split in spec.splits.values())
    model = build_model(
        config.model, space, load_tokenizer(config.model), max_length=config.data.max_length, is_pair=is_pair, seed=0
    )
    counts = count_parameters(model)
    matrices = counts.attention_matrices + counts.projection_matrix
    # The poster counts 3840 for the baseline on SST-5: 768 x 5, without the biases.
    return matrices or sum(weight.numel() for weight in model.classifier.parameters() if weight.dim() == 2)
