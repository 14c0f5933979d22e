"""`TrainingArguments` for transformers' Trainer by the same rule as Attentune's own default settings."""

from __future__ import annotations

from typing import Any

from transformers import TrainingArguments

from attentune.config import TrainingConfig
from attentune.errors import DataError
from attentune.training.defaults import RULED, RunSize, choose_settings

# The rule's settings that have another name, or none, in TrainingArguments.
_SHARED = tuple(name for name in RULED if name not in ("eval_strategy", "eval_steps", "save_steps"))


def recommended_arguments(
    model: Any, train_dataset: Any, *, output_dir: str, eval_dataset: Any = None, **arguments: Any
) -> TrainingArguments:
    """Return training arguments that suit the number and length of the rows and the size of the encoder.

    Learning rate, epochs, batch size and how often the model is scored follow `attentune.training.defaults`; warm-up,
    weight decay and schedule are those of `attentune train`.
    """
    rows = len(train_dataset)
    if not rows or "input_ids" not in train_dataset[0]:
        got = "no rows" if not rows else f"rows with {', '.join(train_dataset[0])}"
        raise DataError(f"train_dataset: got {got}, expected tokenised rows with input_ids.")
    is_table = hasattr(train_dataset, "column_names")
    token_ids = train_dataset["input_ids"] if is_table else [row["input_ids"] for row in train_dataset]
    config = getattr(model.config, "encoder_config", model.config)
    size = RunSize(
        rows=rows,
        mean_tokens=sum(map(len, token_ids)) / rows,
        validation_rows=0 if eval_dataset is None else len(eval_dataset),
        layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
    )
    given = {
        name: arguments[name] for name in (*_SHARED, "max_steps", "gradient_accumulation_steps") if name in arguments
    }
    settled = choose_settings(TrainingConfig(**given, eval_strategy="no" if eval_dataset is None else None), size)
    # The Trainer saves the best weights only where it scores, so both happen at the same steps.
    when = "epoch" if settled.save_steps is None else "steps"
    made: dict[str, Any] = {
        **{name: getattr(settled, name) for name in _SHARED},
        "eval_strategy": "no" if eval_dataset is None else when,
        "save_strategy": when,
        "weight_decay": settled.weight_decay,
    }
    if "warmup_steps" not in arguments:
        made["warmup_steps"] = settled.warmup_ratio  # below 1 it is a share of all steps
    if settled.save_steps is not None:
        made |= {"save_steps": settled.save_steps, "eval_steps": settled.save_steps}
    return TrainingArguments(output_dir=output_dir, **made | arguments)
