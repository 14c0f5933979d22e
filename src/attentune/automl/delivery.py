"""The end of `attentune auto`: fuse what is complete, write the run folder, the leaderboard and the records."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.budget import FEWEST_UPDATES, fitting_updates
from attentune.automl.distill import TIME_MARGIN, Alternative, Distillation, OutOfTime, training_runs
from attentune.automl.estimate import PARTS, Effort, ScoreEstimate, choose_effort, estimate_score
from attentune.automl.fusion import FusionProblem, FusionResult, fit_fusion
from attentune.automl.leaderboard import (
    LEADERBOARD_FILE,
    LeaderboardRow,
    card,
    ranked,
    scored,
    to_dicts,
)
from attentune.automl.members import HELD_OUT_FILE, held_out_logits
from attentune.automl.out_of_fold import WORK_FOLDER, label_note, save_out_of_fold
from attentune.automl.schedule import WEIGHTS_FILE, MemberState
from attentune.automl.thresholds import ThresholdResult, fit_thresholds, utility
from attentune.automl.work import AutoWork
from attentune.config import Config, load_config, to_dict, to_yaml
from attentune.data.columns import with_columns
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import fold_rows, row_groups, stratified_sample
from attentune.inference.ensemble import save_ensemble
from attentune.inference.fusion import Fusion
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor
from attentune.io.files import storage_errors, write_text
from attentune.metrics.metrics import predictions_of, score_predictions
from attentune.results import RESULT_FILE, RunResult, to_json, versions, without_nan
from attentune.training.callbacks import ProgressDisplay
from attentune.training.prepare import row_facts
from attentune.training.run_folder import CONFIG_FILE, METRICS_FILE, Interrupted, Stopped, StopRequest, raise_on_signal

SINGLE_FOLDER = "single"
# The share of the time limit that is kept for fusing, and for the estimate.
END_SHARE = 0.05
# Rows of other splits are scored until the limit is exceeded by this share.
_LATE_SHARE = 0.03
# Seconds for both after a requested stop.
_STOPPED_S = 0.8
# Files of a fold that are not those of a run: what it predicted, that it is kept, and its own records.
_FOLD_FILES = {HELD_OUT_FILE, ".kept", ".lock", "log.jsonl", RESULT_FILE, METRICS_FILE, "README.md", CONFIG_FILE}


@dataclass(frozen=True)
class AutoResult:
    """What `auto` has delivered."""

    folder: Path  # the run folder
    metric: str  # the metric that chose it
    leaderboard: list[LeaderboardRow]  # the members and the fusion, best first
    reason: str  # why this was delivered, in a sentence
    estimate: dict[str, Any]  # the expected score on new rows, with its interval and how it was computed
    scores: dict[str, dict[str, float]]  # the scores of validation and test rows, if there are any; they chose nothing
    seconds: float  # the time spent, over all calls
    stopped: bool = False  # whether a stop was requested (Ctrl-C) before the time was up
    notes: tuple[str, ...] = ()  # sentences on the rows and on what was limited

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "folder": str(self.folder),
            "metric": self.metric,
            "leaderboard": to_dicts(self.leaderboard),
            "reason": self.reason,
            "estimate": self.estimate,
            "scores": self.scores,
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _Fused:
    """A fusion of members with its decision thresholds."""

    result: FusionResult  # the fusion, and how it was chosen
    decided: ThresholdResult  # the thresholds, and what the fusion predicts with them out of fold
    metric: str  # the metric that decided

    @property
    def fusion(self) -> Fusion:
        return self.result.fusion

    @property
    def logits(self) -> np.ndarray:
        """Its out-of-fold logits of the scored rows."""
        return self.result.logits

    @property
    def label_space(self) -> LabelSpace:
        """The labels, with its decision thresholds."""
        return self.decided.label_space

    @property
    def reason(self) -> str:
        has_thresholds, reason = self.label_space.thresholds is not None, self.result.reason
        if self.fusion.kind != "single" and len(self.result.member_scores) > 1:
            # The scores are those of the leaderboard.
            own = self.decided.scores["thresholds" if has_thresholds else "default"]
            alone = self.result.member_scores[self.result.simplest_member]
            reason = f"{reason.removesuffix('.')} ({self.metric} {own:.4f} against {alone:.4f})."
        return f"{reason} {self.decided.reason}" if has_thresholds else reason

    @property
    def name(self) -> str:
        """Its members, as in a sentence."""
        names = self.fusion.members
        return f"the fusion of {', '.join(names)}" if len(names) > 1 else names[0]


@dataclass(frozen=True)
class Delivery:
    """Delivers the best model of finished members."""

    auto: AutoWork  # at least one member is complete
    stop: StopRequest  # whether a stop was requested, before or meanwhile

    @property
    def _scored_rows(self) -> np.ndarray:
        """The indices of the rows that some fold predicts."""
        return np.flatnonzero(self.auto.folds_N > 0)

    @property
    def _labels(self) -> np.ndarray:
        """The labels of these rows."""
        labels = self.auto.data.splits["train"].labels
        assert labels is not None
        return labels[self._scored_rows]

    def _logits(self, state: MemberState) -> np.ndarray:
        """Return a member's logits of these rows."""
        return held_out_logits(state.run_folders(), len(self.auto.folds_N))[self._scored_rows]

    def _on_all_rows(self, logits: np.ndarray) -> np.ndarray:
        """Return logits of the scored rows as (N, C) logits of all rows, NaN in the others."""
        logits_NC = np.full((len(self.auto.folds_N), self.auto.space.num_labels), np.nan)
        logits_NC[self._scored_rows] = logits
        return logits_NC

    def run(self) -> AutoResult:
        """Fuse the complete members, and write the run folder.

        If a stop is requested, before or meanwhile, what is delivered is chosen in about a second, rows of other splits
        are not scored, and the work is kept whole, to be resumed.
        """
        complete = [state for state in self.auto.states if state.is_complete]
        best, estimate, rows = self._chosen(complete)
        single = self._write_model(best, wants_single=self.auto.options.deliver == "single" and not self.stop.requested)
        notes = list(self.auto.notes)
        scores = self._score(notes)
        save_out_of_fold(self.auto.work, self._on_all_rows(best.logits))
        on_labels = label_note(self.auto.folder, self._labels, best.logits, self.auto.space)
        notes += () if on_labels is None else (on_labels,)
        if self.stop.requested:
            notes.append(
                f"Interrupted after {self.auto.spent_s:.0f} s with {len(complete)} of {len(self.auto.states)} members"
                " finished; this is the best of them. --resume goes on."
            )
        result = AutoResult(
            folder=self.auto.folder,
            metric=self.auto.metric.name,
            leaderboard=rows,
            reason=best.reason if single is None else f"{best.reason} {single}",
            estimate=_estimate_facts(estimate),
            scores=scores,
            seconds=self.auto.spent_s,
            stopped=self.stop.requested,
            notes=tuple(notes),
        )
        self._write_records(result)
        if not self.stop.requested:
            self._remove_unused(best)
        return result

    def _chosen(self, states: Sequence[MemberState]) -> tuple[_Fused, ScoreEstimate, list[LeaderboardRow]]:
        """Fuse members, estimate the score, and rank them: in about a second if a stop is or was requested."""
        if not self.stop.requested:
            with contextlib.suppress(Stopped), raise_on_signal(self.stop):
                left_s = max(self.auto.left_s, 0.0)
                # At least what was kept for it; more if nothing else needs the time.
                kept_s = END_SHARE * self.auto.options.time_limit_s
                later_s = 0.0 if self.auto.options.deliver == "best" else left_s / 2
                times = (max(kept_s, 0.2 * (left_s - later_s)), max(kept_s, 0.6 * (left_s - later_s)))
                return self._chosen_within(states, *times)
        return self._chosen_within(states, _STOPPED_S / 2, _STOPPED_S)

    def _chosen_within(
        self, states: Sequence[MemberState], fuse_s: float, estimate_s: float
    ) -> tuple[_Fused, ScoreEstimate, list[LeaderboardRow]]:
        names = f"{len(states)} member{'s' * (len(states) != 1)}"
        self._say(f"fusing {names}")
        problem = self._problem(states)
        effort = self._effort(problem, fuse_s, estimate_s)
        best = self._fuse(problem, effort)
        self._say(f"estimating the score of {names}")

        def each_part(part: int, parts: int) -> None:
            self._say(f"estimating the score, part {part + 1} of {parts}", is_new=False)

        groups = row_groups(self.auto.rows.take(self._scored_rows))
        estimate = estimate_score(problem, effort, groups=groups, each_part=each_part)
        self._say("scoring the members", is_new=False)
        return best, estimate, self._leaderboard(best)

    def _problem(self, states: Sequence[MemberState]) -> FusionProblem:
        """Return what the fusion of these members is fitted on."""
        logits = {state.member.name: self._logits(state) for state in states}
        auto, seed = self.auto, self.auto.config.training.seed
        return FusionProblem(logits, self._labels, self._fusion_folds(), auto.space, auto.metric, seed)

    def _effort(self, problem: FusionProblem, fuse_s: float, estimate_s: float) -> Effort:
        """Choose how much of fusing and estimating fits into the time, timed on small pieces of the rows."""
        if math.isinf(fuse_s):
            return Effort()

        def seconds_of(kinds: tuple[str, ...], rows: int) -> float:
            piece = problem.part(stratified_sample(problem.labels, rows, problem.seed, "auto timing"))
            began = time.perf_counter()
            fused = fit_fusion(replace(piece, seed=0), kinds)
            fit_thresholds(fused.logits, piece.labels, piece.space, metric=piece.metric, folds=piece.folds)
            return time.perf_counter() - began

        folds = len(np.unique(problem.folds))
        return choose_effort(seconds_of, rows=len(problem.labels), folds=folds, fuse_s=fuse_s, estimate_s=estimate_s)

    def end_seconds(self, states: Sequence[MemberState]) -> float:
        """Predict the seconds that fusing and estimating these members will take; at most what is spent on them."""
        kept_s = END_SHARE * self.auto.options.time_limit_s
        effort = self._effort(self._problem(states), kept_s, kept_s)
        parts = effort.parts or max(PARTS, len(np.unique(self._fusion_folds())))
        return min(kept_s, effort.seconds) + min(kept_s, parts * effort.seconds)

    def _say(self, step: str, *, is_new: bool = True) -> None:
        self.auto.display.doing(step, is_new=is_new)

    def _fusion_folds(self) -> np.ndarray:
        """Return the fold of each scored row; the rows of one held-out part are divided into five."""
        folds_N = self.auto.folds_N[self._scored_rows]
        if len(np.unique(folds_N)) > 1:
            return folds_N
        rows, seed = self.auto.data.splits["train"].take(self._scored_rows), self.auto.config.training.seed
        parts, _ = fold_rows(rows, min(5, len(folds_N)), "auto held out", seed)
        for number, part in enumerate(parts):
            folds_N[part] = number
        return folds_N

    def _leaderboard(self, fused: _Fused) -> list[LeaderboardRow]:
        """Return the members and the fusion, best first, then the members that were left out."""
        weights, labels, seed = fused.fusion.member_weights(), self._labels, self.auto.config.training.seed
        rows = []
        for state in self.auto.states:
            member = state.member
            row = LeaderboardRow(member.name, member.kind, member.method, member.encoder, seconds=state.seconds)
            if not state.has_predictions:
                rows.append(replace(row, status="left out", note=state.note))
                continue
            rows.append(
                replace(
                    row,
                    **scored(self.auto.metric, labels, predictions_of(self._logits(state), self.auto.space), seed=seed),
                    bytes=_bytes(state.folders()),
                    weight=weights.get(member.name),
                    note=state.note,
                )
            )
        if fused.fusion.kind != "single":
            parts = [row for row in rows if row.weight is not None]
            fusion = LeaderboardRow(
                "fusion",
                "fusion",
                fused.fusion.kind,
                **scored(self.auto.metric, labels, fused.decided.predictions, seed=seed),
                seconds=sum(row.seconds for row in parts),
                bytes=sum(row.bytes for row in parts),
                weight=1.0,
            )
            rows.append(fusion)
        return ranked(rows, self.auto.metric)

    def _write_model(self, best: _Fused, *, wants_single: bool) -> str | None:
        """Write the delivered model: a run, an ensemble, or an encoder that learns from the ensemble."""
        clear_folder(self.auto.folder, keep=(WORK_FOLDER,))
        if wants_single:
            self._say("distilling")
            try:
                return self._write_single(best)
            except (OutOfTime, Interrupted) as error:
                clear_folder(self.auto.folder, keep=(WORK_FOLDER,))
                self._write_fused(best)
                if isinstance(error, Interrupted):
                    return "It was not distilled into one encoder before the interruption."
                return "No time was left to distil it into one encoder: give more with --time_limit and --resume."
        self._write_fused(best)
        return None

    def _write_fused(self, fused: _Fused) -> None:
        """Write the run itself if it is one, else an ensemble."""
        run = self._only_run(fused)
        if run is not None:
            self._write_run(run)
            return
        save_ensemble(self.auto.folder, self._folders(fused), fused.fusion, fused.label_space, self.auto.data.is_pair)
        self._write_config(self.auto.config)

    def _write_run(self, run: Path) -> None:
        _copy_run(run, self.auto.folder)
        self._write_config(self._config_of_run(run))

    def _only_run(self, fused: _Fused) -> Path | None:
        """Return the run that a fusion is, or None if it has several or decision thresholds."""
        folders = [folder for parts in self._folders(fused).values() for folder in parts]
        return folders[0] if len(folders) == 1 and fused.label_space == self.auto.space else None

    def _folders(self, fused: _Fused) -> dict[str, list[Path]]:
        """Return the run folders of each member, absolute, since `save_ensemble` reads relative ones as in its own."""
        by_name = {state.member.name: state for state in self.auto.states}
        return {name: [folder.absolute() for folder in by_name[name].folders()] for name in fused.fusion.members}

    def _write_single(self, best: _Fused) -> str:
        """Write a model that needs one encoder, and return a sentence on what it costs and saves.

        It is an encoder that learns what the ensemble predicts, unless the fused baselines, which share one frozen
        encoder, have a lower loss on the fold that both are scored on. Of an ensemble of baselines alone they are
        written at once: there is little to teach that they do not know.
        """
        if self._only_run(best) is not None:
            self._write_fused(best)
            return "It is a single model already."
        members = [state.member for state in self.auto.states if state.member.name in best.fusion.members]
        baselines = self._fused_baselines()
        if baselines is not None and all(member.is_baseline for member in members):
            self._write_fused(baselines)
            return f"All its members are baselines, which share one encoder: {baselines.name} is delivered."
        save_ensemble(self.auto.work, self._folders(best), best.fusion, best.label_space, self.auto.data.is_pair)
        folder = self.auto.work / SINGLE_FOLDER
        result = self._distill(best, folder, baselines)
        facts = result.train.get("distillation", {})
        if baselines is None or not facts.get("alternative_is_better"):
            self._write_run(folder)
            return result.notes[-1]
        self._write_fused(baselines)
        return (
            f"A model distilled from the ensemble has a higher loss than {baselines.name}, which needs no more than one"
            f" encoder and is delivered: {facts['metric']} {facts['single']:.4f} against"
            f" {facts['alternative_score']:.4f}, the ensemble {facts['ensemble']:.4f}, on {facts['rows']:,} training"
            f" rows of one fold. The distilled model is in {WORK_FOLDER}/{SINGLE_FOLDER}, for export."
        )

    def _fused_baselines(self) -> _Fused | None:
        """Fuse the complete baselines that need no encoder, or the one that the best baseline needs."""
        complete = [one for one in self.auto.states if one.is_complete and one.member.is_baseline]
        known = [one for one in complete if one.member.method != "majority"]
        if not known:
            return None
        with_encoder = [one for one in known if one.member.encoder is not None]
        best = max(with_encoder, key=self._utility, default=None)
        encoders = {None} if best is None else {None, best.member.encoder}
        return self._fuse(self._problem([one for one in complete if one.member.encoder in encoders]))

    def _utility(self, state: MemberState) -> float:
        return utility(self.auto.metric, self._labels, predictions_of(self._logits(state), self.auto.space))

    def _fuse(self, problem: FusionProblem, effort: Effort = Effort()) -> _Fused:  # noqa: B008  frozen
        """Fuse members by their out-of-fold predictions, and choose decision thresholds."""
        result = fit_fusion(problem, effort.kinds, effort.max_rows)
        self._say("fitting decision thresholds", is_new=False)
        decided = fit_thresholds(
            result.logits, problem.labels, problem.space, metric=problem.metric, folds=problem.folds
        )
        return _Fused(result, decided, problem.metric.name)

    def _distill(self, fused: _Fused, folder: Path, baselines: _Fused | None) -> RunResult:
        """Train one encoder on the ensemble's out-of-fold predictions; its record compares it with the ensemble."""
        used = np.flatnonzero(self.auto.folds_N >= 0)
        logits_NC = self._on_all_rows(fused.logits)
        splits = {**self.auto.data.splits, "train": self.auto.data.splits["train"].take(used)}
        shutil.rmtree(folder, ignore_errors=True)
        training = replace(self.auto.config.training, resume=False, overwrite_output_dir=False, output_dir=str(folder))
        return Distillation(
            teacher=Predictor.load(self.auto.work),
            data=replace(self.auto.data, splits=splits),
            config=replace(self.auto.config, training=training),
            out_of_fold=logits_NC[used],
            folds=self.auto.folds_N[used] - 1,
            alternative=None if baselines is None else self._alternative(baselines, used),
            unlabeled=self.auto.unlabeled,
            max_steps=self._distillation_updates(fused),
            left_s=lambda: self.auto.left_s,
            display=ProgressDisplay(quiet=True),
        ).run()

    def _alternative(self, baselines: _Fused, used: np.ndarray) -> Alternative:
        logits_NC = self._on_all_rows(baselines.logits)[used]
        return Alternative(baselines.name, logits_NC, baselines.label_space)

    def _distillation_updates(self, fused: _Fused) -> int | None:
        """Return the updates that fit into the time left, if those of the members do not."""
        states = [
            one for one in self.auto.states if one.member.name in fused.fusion.members and not one.member.is_baseline
        ]
        records = [record for one in states for record in one.records.values() if record.run.seed != one.seed]
        if not records or self.auto.config.training.num_train_epochs is not None:
            return None
        longest = max(records, key=lambda record: record.wall_seconds)
        longest_s, updates = longest.wall_seconds, longest.config["training"]["max_steps"]

        def needed_s(count: int) -> float:
            return longest_s * count / updates * training_runs(self.auto.data) * TIME_MARGIN

        left_s = self.auto.left_s
        if needed_s(updates) <= left_s:
            return None
        return fitting_updates(updates, needed_s, left_s, fewest=FEWEST_UPDATES) or FEWEST_UPDATES

    def _write_config(self, config: Config) -> None:
        training = replace(config.training, output_dir=str(self.auto.folder), resume=False, overwrite_output_dir=False)
        data = with_columns(self.auto.config.data, self.auto.data.columns)
        write_text(self.auto.folder / CONFIG_FILE, to_yaml(replace(config, training=training, data=data)))

    def _config_of_run(self, folder: Path) -> Config:
        file = folder / CONFIG_FILE
        return load_config(file, as_record=True) if file.is_file() else self.auto.config

    def _score(self, notes: list[str]) -> dict[str, dict[str, float]]:
        """Score the delivered model on the validation and test rows, and write its predictions.

        Not after a stop, and no longer than the time limit allows; a note says so.
        """
        splits = {name: rows for name, rows in self.auto.data.splits.items() if name != "train"}
        scores: dict[str, dict[str, float]] = {}
        try:
            if splits and not self.stop.requested:
                with raise_on_signal(self.stop):
                    self._score_splits(splits, scores)
        except (Stopped, OutOfTime):
            pass
        left_out = [
            name for name, rows in splits.items() if name not in scores and rows.labels is not None and len(rows)
        ]
        if left_out:
            why = "because of the interruption" if self.stop.requested else "as the time was up"
            command = shlex.join(["attentune", "evaluate", str(self.auto.folder), "--split", left_out[0]])
            notes.append(f"Rows of {' and '.join(left_out)} were not scored, {why}: {command}")
        return scores

    def _score_splits(self, splits: dict[str, TextRows], scores: dict[str, dict[str, float]]) -> None:
        def check_time(_: int) -> None:
            if self.auto.left_s < -_LATE_SHARE * self.auto.options.time_limit_s:
                raise OutOfTime

        predictor = Predictor.load(self.auto.folder)
        evaluator = predictor.predictor(replace(self.auto.data, splits=splits), precision=None)
        names = tuple(dict.fromkeys((*self.auto.data.metrics, self.auto.metric.name)))
        for split, rows in splits.items():
            self._say(f"scoring {len(rows):,} {split} rows")
            logits_NC = evaluator.predict(split, check_time)
            write_text(
                self.auto.folder / f"predictions_{split}.csv", predictions_csv(rows, logits_NC, predictor.label_space)
            )
            if rows.labels is not None and len(rows):
                scores[split] = score_predictions(names, rows.labels, logits_NC, predictor.label_space)

    def _write_records(self, result: AutoResult) -> None:
        """Write the leaderboard, the card, the scores, and last the record of the run."""
        write_text(self.auto.work / LEADERBOARD_FILE, to_json(result.to_dict()))
        write_text(self.auto.folder / "README.md", card(result.leaderboard, result.to_dict()))
        record = RunResult(
            scores={split: dict(part) for split, part in result.scores.items()},
            train={
                "seconds": round(result.seconds, 3),
                "rows": int((self.auto.folds_N >= 0).sum()),
                **row_facts(self.auto.data.splits["train"]),
                "folds": max(1, int(self.auto.folds_N.max())),
                "members": [row.name for row in result.leaderboard if row.weight is not None and row.kind != "fusion"],
                "estimate": result.estimate,
            },
            best=None,
            config=to_dict(self.auto.config),
            seed=self.auto.config.training.seed,
            versions=versions(),
            data_fingerprint=self.auto.data.fingerprint(),
            notes=[*self.auto.data.notes, *result.notes, result.reason],
        )
        write_text(self.auto.folder / METRICS_FILE, to_json(record.metrics()))
        write_text(self.auto.folder / RESULT_FILE, record.to_json())

    def _remove_unused(self, fused: _Fused) -> None:
        """Remove the weights of finished members that are not delivered; their predictions are kept."""
        for state in self.auto.states:
            if state.member.name in fused.fusion.members or state.member.is_baseline:
                continue
            for folder in state.run_folders():
                (folder / WEIGHTS_FILE).unlink(missing_ok=True)


def clear_folder(folder: Path, *, keep: Sequence[str]) -> None:
    """Remove a run folder's content, except for the lock and these entries."""
    with storage_errors(folder):
        for entry in sorted(folder.iterdir()):
            if entry.name == ".lock" or entry.name in keep:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


def _estimate_facts(estimate: ScoreEstimate) -> dict[str, Any]:
    """Return the estimate as plain values, without predictions."""
    values = {name: getattr(estimate, name) for name in ("metric", "value", "low", "high", "rows", "method")}
    return without_nan(values)


def _bytes(folders: Sequence[Path]) -> int:
    """Return the size of the files of these folders."""
    return sum(
        file.stat().st_size for folder in folders if folder.is_dir() for file in folder.iterdir() if file.is_file()
    )


def _copy_run(run: Path, folder: Path) -> None:
    """Copy the files of a run folder or baseline folder, by hard links where the file system has them."""
    with storage_errors(folder):
        for file in sorted(run.iterdir()):
            if not file.is_file() or file.name in _FOLD_FILES:
                continue
            try:
                os.link(file, folder / file.name)
            except OSError:
                shutil.copy2(file, folder / file.name)
