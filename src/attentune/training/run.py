"""One training run, told from its configuration to the finished run folder. Read this file first.

prepare.py     config -> rows, labels, metric, before PyTorch is imported
models/, nn/   encoder -> four slots (blur, layer mix, token gate, head) -> classifier
objective.py   the loss; optimizer.py: AdamW and the learning rate
token_labels/  the plan of an epoch: its rows, masks and token labels
trainer.py     batches, accumulation, evaluation
checkpoint.py  checkpoints, resuming, the final weights
card.py        predictions, scores and the model card of the run folder
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attentune.config import Config, to_dict
from attentune.data.dataset import CALIBRATION, TaskData
from attentune.models.build import count_parameters
from attentune.models.slots import merge_adapters
from attentune.models.vocabulary_subset import VocabularySubset
from attentune.nn.compiled.memory import kept_memory
from attentune.results import LOG_FILE, RESULT_FILE, RunResult, versions
from attentune.token_labels.plan import EpochPlan
from attentune.training import building, checkpoint
from attentune.training.baselines import compare_with_baselines, run_baseline
from attentune.training.calibration import calibrate, calibration_sentence, fit_on_held_out
from attentune.training.callbacks import JsonLog, ProgressDisplay, TrainingCallback, ending, log_final, tracked
from attentune.training.card import write_results
from attentune.training.cue_effects import cue_effects, cue_sentence
from attentune.training.linear_probe import fit_output_scale, freeze_encoder
from attentune.training.objective import Denominators, build_objective
from attentune.training.optimizer import LearningRateSchedule, build_optimizer, set_learning_rate
from attentune.training.prepare import Prepared, RunInputs, frame_run, prepare, settle, wants_best
from attentune.training.run_folder import Interrupted, StopRequest, opened_folder, stop_on_signal
from attentune.training.trainer import PlanCancelled, Trainer


def train(
    config: Config | Any,
    *,
    data: TaskData | None = None,
    display: ProgressDisplay | None = None,
    callbacks: Sequence[TrainingCallback] = (),
    with_baselines: bool = True,
    **columns: Any,
) -> RunResult:
    """Fine-tune, evaluate and save a model; the run folder is `config.training.output_dir`.

    Nothing is written before data, settings and encoder have been checked.

    Args:
        config: from `load_config`; or a data frame of labelled texts.
        data: rows to use instead of those of `config.data`. To resume such a run, pass the same rows again.
        display: shows progress; on standard error if None.
        callbacks: called after the run's own (log, tracker, progress bar) at each event of training.
        with_baselines: compare the model with the baselines of `training.baselines` at the end; commands that train
            many runs turn it off.
        columns: of a data frame: the names `text`, `text_pair` and `label` of its columns; `output_dir` (default:
            runs/dataframe), and `preset` and `overrides` as in `load_config`.

    Returns:
        The run's record, as in its `run.json`.

    Raises:
        AttentuneError: a mistake that the user can correct; the message says how.
        Interrupted: a stop was requested (Ctrl-C or SIGTERM) and the run was saved.
    """
    if columns or not isinstance(config, Config):
        config, data = frame_run(config, **columns)
    with display or ProgressDisplay() as display:
        prepared = prepare(config, data)
        if prepared is None:
            return finished_run(config, display)
        return run(prepared, display=display, callbacks=callbacks, with_baselines=with_baselines)


def finished_run(config: Config, display: ProgressDisplay) -> RunResult:
    folder = Path(str(config.training.output_dir))
    display.info(f"{folder}: this run is finished; nothing to resume.")
    return RunResult.load(folder / RESULT_FILE)


def run(
    prepared: Prepared,
    *,
    display: ProgressDisplay,
    callbacks: Sequence[TrainingCallback] = (),
    with_baselines: bool = True,
) -> RunResult:
    inputs = building.load_inputs(prepared, display)
    config, is_main = inputs.config, inputs.accelerator.is_main_process
    if config.baseline is not None:
        with opened_folder(config, is_main=is_main) as folder:
            result = run_baseline(folder, config.baseline, inputs)
        for note in result.notes[len(inputs.data.notes) :]:
            display.info(note)
    else:
        trainer = build(settle(inputs, display))
        if trainer.note is not None:
            display.info(trainer.note)
        config = trainer.inputs.config
        with (
            opened_folder(config, is_main=is_main) as folder,
            stop_on_signal() as stop,
            tracked(trainer.accelerator, config),
        ):
            fit(folder, trainer, stop, display, callbacks, resume=config.training.resume)
            result = finish(folder, trainer, display if with_baselines else None)
            trainer.accelerator.end_training()
    display.info(ending(result, folder, is_best=wants_best(config.training)))
    if (sentence := cue_sentence(result.cues, inputs)) is not None:
        display.info(sentence)
    for sentence in result.warnings:
        display.warning(sentence)
    return result


def build(inputs: RunInputs) -> Trainer:
    training, accelerator = inputs.config.training, inputs.accelerator
    objective = build_objective(
        replace(inputs.config.objective, loss=inputs.loss),
        inputs.data.label_space,
        inputs.labels,
        row_weights=inputs.weights,
        score_scale=inputs.score_scale,
        soft_targets=inputs.data.splits["train"].targets is not None,
    )
    model = building.new_model(inputs, objective)
    frozen, note = freeze_encoder(inputs, model)
    embeddings = VocabularySubset(model.encoder, building.used_token_ids(inputs))
    planner = building.build_planner(inputs, model)
    optimizer = build_optimizer(training, model, processes=accelerator.num_processes)
    return Trainer(
        inputs=inputs,
        model=model,
        wrapped=accelerator.prepare_model(model),
        objective=objective,
        planner=planner,
        schedule=LearningRateSchedule(training, building.count_steps(inputs, planner)),
        optimizer=accelerator.prepare_optimizer(optimizer),
        embeddings=embeddings,
        evaluator=building.new_evaluator(inputs, model, frozen),
        frozen=frozen,
        note=note,
    )


def fit(
    folder: Path,
    trainer: Trainer,
    stop: StopRequest,
    display: ProgressDisplay,
    callbacks: Sequence[TrainingCallback] = (),
    *,
    resume: bool,
) -> None:
    """Train to the end, with `resume` from the newest undamaged checkpoint."""
    checkpointer = checkpoint.Checkpointer(folder, trainer)
    is_resumed = resume and checkpointer.restore(display)
    is_main, log_bytes = trainer.accelerator.is_main_process, trainer.state.log_bytes
    log = JsonLog(folder / LOG_FILE, keep_bytes=log_bytes) if is_main else None
    trainer.connect(stop, log, display, callbacks)
    if not is_resumed and (note := trainer.start_classifier()) is not None:
        display.info(note)
    display.start(trainer.schedule.total_steps, trainer.state.step, keeps_best=wants_best(trainer.training))
    try:
        with kept_memory():
            for is_save_due in epochs(trainer):
                if is_save_due:
                    checkpointer.save()
            checkpointer.save()
    finally:
        display.stop()
    if not trainer.is_finished:
        raise Interrupted(str(folder), trainer.state.step)


def epochs(trainer: Trainer) -> Iterator[bool]:
    """Train to the end, or until a stop is requested; yield after each optimiser step whether a checkpoint is due."""
    state = trainer.state
    if trainer.begin():
        trainer.evaluate()
        yield True
    with contextlib.suppress(PlanCancelled):
        while not trainer.is_finished and not trainer.is_stopping:
            plan = trainer.plan_epoch()
            steps = trainer.batches(plan)
            for group in steps[state.step_in_epoch :]:
                trainer.log_step(training_step(trainer, plan, group))
                is_epoch_end = state.step_in_epoch == len(steps)
                if is_epoch_end:
                    trainer.end_epoch()
                is_best = trainer.should_evaluate(is_epoch_end=is_epoch_end) and trainer.evaluate()
                yield is_best or trainer.should_save(is_epoch_end=is_epoch_end) or state.stopped_early
                if trainer.is_finished or trainer.is_stopping:
                    break


def training_step(trainer: Trainer, plan: EpochPlan, group: list[np.ndarray]) -> dict[str, float]:
    """Do one optimiser step over a group of batches; return its loss, learning rates and gradient norm."""
    began, step = time.perf_counter(), trainer.state.step
    set_learning_rate(trainer.optimizer, trainer.schedule.factor(step))
    denominators = trainer.denominators(plan, group)
    sums_3 = torch.zeros(3, device=trainer.accelerator.device)
    for number, samples in enumerate(group):
        with trainer.one_batch(number, is_last=number + 1 == len(group)):
            sums_3 += forward_backward(trainer, plan, samples, denominators)
    loss = trainer.mean_loss(sums_3, denominators, plan, group)
    norm = trainer.clip(plan, group)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.count_step(plan, group, loss, time.perf_counter() - began)
    return {"loss": loss, **trainer.schedule.rates(step), "grad_norm": norm}


def forward_backward(
    trainer: Trainer, plan: EpochPlan, samples: np.ndarray, denominators: Denominators
) -> torch.Tensor:
    """Compute the loss of a batch and its gradients; return the sums of `Objective.sums`."""
    batch = trainer.batch(plan, samples)
    output = trainer.wrapped(**batch.inputs)
    targets = (batch.labels_B, batch.token_labels_BT, batch.weights_B, batch.weak_BC)
    sums_3 = trainer.objective.sums(output, *targets) * batch.share
    # Processes average their gradients; the factor turns that into the sum over all rows.
    trainer.accelerator.backward(denominators.combine(sums_3) * trainer.accelerator.num_processes)
    return sums_3.detach()


def finish(folder: Path, trainer: Trainer, display: ProgressDisplay | None = None) -> RunResult:
    """Choose the final weights, evaluate them and write the results; `run.json` is last and marks the run finished."""
    inputs, training, state = trainer.inputs, trainer.training, trainer.state
    model, evaluator = trainer.model, trainer.evaluator
    trainer.free_optimizer_memory()
    trainer.embeddings.expand(trainer.decay())
    final_step = checkpoint.load_best(folder, trainer)
    # Before adapters are merged, which changes the counts.
    counts, lora = count_parameters(model), model.config.lora
    adapters = merge_adapters(model)
    scale_note = fit_output_scale(inputs, evaluator)
    splits = [name for name in inputs.data.splits if name not in ("train", CALIBRATION)]
    as_scored = final_step == state.last_scored_step and scale_note is None and adapters is None
    if (calibration := calibrate(evaluator, splits, training, reuse=as_scored)) is not None:
        model.config.update(calibration.settings())
    scores = evaluator.score(splits, reuse=as_scored or calibration is not None)
    rejection, rejection_note = fit_on_held_out(evaluator, training.reject)
    labels = trainer.planner.tensors()
    comparison: tuple[dict[str, Any] | None, list[str]] = (None, [])
    if display is not None and inputs.accelerator.is_main_process:
        comparison = compare_with_baselines(inputs, evaluator, state.seconds + state.label_seconds, display)
    found = {} if calibration is None else {"calibration": calibration.facts(evaluator.label_space)}
    found |= {} if rejection is None else {"rejection": rejection.facts()}
    notes = (scale_note, rejection_note, calibration_sentence(calibration, evaluator, splits))
    result = RunResult(
        scores={split: dict(part) for split, part in scores.items()},
        train=trainer.facts(final_step, counts) | found,
        best=state.best,
        config=to_dict(inputs.config),
        seed=training.seed,
        versions=versions(),
        data_fingerprint=inputs.fingerprint,
        notes=[*inputs.data.notes, *(note for note in notes if note is not None)],
        baselines=comparison[0],
        cues=cue_effects(inputs, evaluator),
        warnings=comparison[1],
    )
    if inputs.accelerator.is_main_process:
        if adapters is not None:
            checkpoint.save_adapters(folder / checkpoint.ADAPTER_FOLDER, adapters, trainer, lora)
        checkpoint.save_final_model(folder, trainer, labels)
        if rejection is not None:
            rejection.save(folder)
        data = replace(inputs.data, label_space=evaluator.label_space)
        write_results(folder, inputs, data, result, {split: evaluator.logits[split] for split in splits})
    log_final(inputs.accelerator, result.scores, state.step)
    return result
