"""The end of `attentune auto`: fuse what is complete, write the run folder, the leaderboard and the records."""

import contextlib
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.budget import FEWEST_UPDATES, WEIGHTS_FILE, LoadMeter, MemberState
from attentune.automl.distill import TIME_MARGIN, Distillation, OutOfTime, training_runs
from attentune.automl.folds import HELD_OUT_FILE, held_out_energies, label_note, save_out_of_fold
from attentune.automl.fusion import (
    PARTS,
    Effort,
    FusionProblem,
    choose_effort,
    estimate_score,
    fit_fusion,
)
from attentune.automl.leaderboard import LEADERBOARD_FILE, WORK_FOLDER, AutoResult, LeaderboardRow, card, ranked
from attentune.automl.thresholds import fit_thresholds
from attentune.automl.work import AutoWork
from attentune.config import Config, load_config, to_dict, to_yaml
from attentune.data.columns import with_columns
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import fold_rows, stratified_sample
from attentune.inference.ensemble import save_ensemble
from attentune.inference.fusion import Fusion
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor
from attentune.io.files import storage_errors, write_text
from attentune.metrics.intervals import score_interval
from attentune.metrics.metrics import predictions_of, score_predictions
from attentune.metrics.rejection import energy_weights, fit_rejection, maximum_probability
from attentune.results import RESULT_FILE, RunResult, to_json, versions, without_nan
from attentune.seeding import numpy_generator
from attentune.training.prepare import row_facts
from attentune.training.run_folder import (
    CONFIG_FILE,
    METRICS_FILE,
    Interrupted,
    Stopped,
    StopRequest,
    empty_folder,
    raise_on_signal,
)

SINGLE_FOLDER = "single"
# The share of the time limit that is kept for fusing, and for the estimate.
END_SHARE = 0.05
# Rows of other splits are scored until the limit is exceeded by this share.
_LATE_SHARE = 0.03
# Seconds for both after a requested stop.
_STOPPED_S = 0.5
# Files of a fold that are not those of a run: what it predicted, that it is kept, and its own records.
_FOLD_FILES = {HELD_OUT_FILE, ".kept", ".lock", "log.jsonl", RESULT_FILE, METRICS_FILE, "README.md", CONFIG_FILE}
_RESAMPLES, _FEWER_RESAMPLES, _MANY_ROWS = 1000, 200, 3000
_METHOD = (
    "nested cross-fitting: members, fusion, its kind and thresholds are chosen without the part that is scored; the"
    " interval is over rows and these choices"
)


@dataclass(frozen=True)
class _Fused:
    fusion: Fusion
    logits: np.ndarray  # its out-of-fold logits of the scored rows
    predictions: np.ndarray  # what it predicts for them, with the thresholds
    label_space: LabelSpace  # with its decision thresholds
    reason: str


class Delivery:
    """Delivers the best model of the finished members (at least one)."""

    def __init__(self, auto: AutoWork, stop: StopRequest) -> None:
        self.auto = auto
        self.stop = stop  # whether a stop was requested, before or meanwhile
        self.reads_columns = False  # whether the delivered model reads columns beside the text
        self.delivered: _Fused | None = None  # None until it is written, and if it is a distilled encoder
        self.better: MemberState | None = None  # a baseline that is delivered instead of a distilled encoder
        self.labels, self.seed = auto.labels, auto.config.training.seed

    def run(self) -> AutoResult:
        """Fuse the complete members, and write the run folder; after a stop request in about a second."""
        auto = self.auto
        complete = [state for state in auto.states if state.is_complete]
        best, estimate, rows = self._chosen(complete)
        single = self._write_model(best, wants_single=auto.options.deliver == "single" and not self.stop.requested)
        if self.better is not None:
            best, estimate, rows = self._chosen([self.better])
            self._write_fused(best)
        rejection = self._reject(best)
        notes = [*auto.notes, *([] if rejection is None else [rejection])]
        if auto.data.has_columns and not self.reads_columns:
            names = ", ".join(auto.rows.extra)
            notes.append(f"The delivered model does not read the columns {names}.")
        notes += self._speed_notes()
        scores = self._score(notes)
        save_out_of_fold(auto.work, self._on_all_rows(best.logits))
        if best.fusion.members != ("majority",):  # whose certainty says nothing about rows
            on_labels = label_note(auto.folder, self.labels, best.logits, auto.space)
            notes += () if on_labels is None else (on_labels,)
        if self.stop.requested:
            notes.append(
                f"Interrupted after {auto.spent_s:.0f} s with {len(complete)} of {len(auto.states)} members finished;"
                " this is the best of them. --resume goes on."
            )
        result = AutoResult(
            folder=auto.folder,
            metric=auto.metric.name,
            leaderboard=rows,
            reason=" ".join(filter(None, (best.reason if self.better is None else None, single))),
            estimate=estimate,
            scores=scores,
            seconds=auto.spent_s,
            stopped=self.stop.requested,
            notes=tuple(notes),
            rejection=rejection,
        )
        self._write_records(result)
        # The weights of finished members that are not delivered are removed; their predictions are kept. Those of
        # unfinished ones are kept too: with more time, a resumed call trains their other folds.
        for state in () if self.stop.requested else auto.states:
            is_delivered = state.member.name in best.fusion.members
            if state.has_predictions and not is_delivered and not state.member.is_baseline:
                for folder in state.folders():
                    (folder / WEIGHTS_FILE).unlink(missing_ok=True)
        return result

    # What is delivered.

    def _chosen(self, states: Sequence[MemberState]) -> tuple[_Fused, dict[str, Any], list[LeaderboardRow]]:
        """Fuse members, estimate the score, and rank them: in about a second if a stop is or was requested."""
        if not self.stop.requested:
            with contextlib.suppress(Stopped), raise_on_signal(self.stop):
                kept_s = END_SHARE * self.auto.options.time_limit_s
                best, estimate = self._chosen_within(states, kept_s, kept_s, self.auto.display.say)
                return best, estimate, self._leaderboard(best)
        names = tuple(state.member.name for state in states)
        if self.auto.prepared is None or self.auto.prepared[0] != names:
            self.prepare(states, self.auto.display.say)
        assert self.auto.prepared is not None
        best, estimate = self.auto.prepared[1]
        return best, estimate, self._leaderboard(best)

    def prepare(self, states: Sequence[MemberState], tell: Callable[[str], None] = lambda _: None) -> None:
        """Fuse these members and estimate the score, so that a stop does not wait for it: in about a second."""
        chosen = self._chosen_within(states, _STOPPED_S / 2, _STOPPED_S, tell)
        self.auto.prepared = tuple(state.member.name for state in states), chosen
        self._leaderboard(chosen[0])  # whose intervals are kept

    def _chosen_within(
        self, states: Sequence[MemberState], fuse_s: float, estimate_s: float, tell: Callable[[str], None]
    ) -> tuple[_Fused, dict[str, Any]]:
        names, auto = f"{len(states)} member{'s' * (len(states) != 1)}", self.auto
        tell(f"fusing {names}")
        problem = self._problem(states)
        effort = self._effort(problem, fuse_s, estimate_s)
        best = self._fuse(problem, effort)
        tell(f"estimating the score of {names}")
        estimate = estimate_score(problem, effort, groups=auto.groups)
        facts = {
            "metric": auto.metric.name,
            "value": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "rows": len(self.labels),
            "method": _METHOD,
        }
        return best, without_nan(facts)

    def _problem(self, states: Sequence[MemberState]) -> FusionProblem:
        """Return the rows and logits for fitting a fusion; the rows of one held-out part have five folds."""
        auto = self.auto
        folds_N = auto.folds_N[auto.scored]
        if len(np.unique(folds_N)) == 1:
            rows = auto.rows.take(auto.scored)
            for number, part in enumerate(fold_rows(rows, min(5, len(folds_N)), "auto held out", self.seed)[0]):
                folds_N[part] = number
        logits = {state.member.name: auto.out_of_fold(state) for state in states}
        return FusionProblem(logits, self.labels, folds_N, auto.space, auto.metric, self.seed)

    def _effort(self, problem: FusionProblem, fuse_s: float, estimate_s: float) -> Effort:
        """Choose how much of fusing and estimating fits into the time, timed on small pieces of the rows."""
        meter = LoadMeter()  # so that a moment in which others work does not count

        def seconds_of(kinds: tuple[str, ...], rows: int) -> float:
            piece = problem.part(stratified_sample(problem.labels, rows, problem.seed, "auto timing"))
            began = time.thread_time()
            fused = fit_fusion(replace(piece, seed=0), kinds)
            fit_thresholds(fused.logits, piece.labels, piece.space, metric=piece.metric, folds=piece.folds)
            return meter.load() * (time.thread_time() - began)

        folds = len(np.unique(problem.folds))
        return choose_effort(seconds_of, rows=len(problem.labels), folds=folds, fuse_s=fuse_s, estimate_s=estimate_s)

    def end_seconds(self, states: Sequence[MemberState]) -> float:
        """Predict the seconds that fusing and estimating these members will take; at most what is spent on them."""
        kept_s, problem = END_SHARE * self.auto.options.time_limit_s, self._problem(states)
        effort = self._effort(problem, kept_s, kept_s)
        parts = effort.parts or max(PARTS, len(np.unique(problem.folds)))
        return min(kept_s, effort.seconds) + min(kept_s, parts * effort.seconds)

    def _fuse(self, problem: FusionProblem, effort: Effort) -> _Fused:
        """Fuse members by their out-of-fold predictions, and choose decision thresholds."""
        result = fit_fusion(problem, effort.kinds, effort.max_rows)
        decided = fit_thresholds(
            result.logits, problem.labels, problem.space, metric=problem.metric, folds=problem.folds
        )
        reason = result.reason
        if result.fusion.kind != "single" and len(problem.logits) > 1:
            # The scores are those of the leaderboard.
            own = problem.metric.score(problem.labels, decided.predictions)
            simplest_NC = problem.logits[result.simplest_member]
            alone = problem.metric.score(problem.labels, predictions_of(simplest_NC, problem.space))
            reason = f"{reason.removesuffix('.')} ({problem.metric.name} {own:.4f} against {alone:.4f})."
        reason = f"{reason} {decided.reason}".strip()
        return _Fused(result.fusion, result.logits, decided.predictions, decided.label_space, reason)

    def _leaderboard(self, fused: _Fused) -> list[LeaderboardRow]:
        """Return the members and the fusion, best first, then the members that were left out."""
        weights, is_single = fused.fusion.member_weights(), fused.fusion.kind == "single"
        has_thresholds = fused.label_space.thresholds is not None
        rows = []
        for state in self.auto.states:
            member = state.member
            row = LeaderboardRow(
                member.name, member.kind, member.method, member.encoder, seconds=state.seconds, note=state.note
            )
            if not state.has_predictions:
                rows.append(replace(row, status="left out"))
                continue
            files = [file for folder in state.folders() if folder.is_dir() for file in folder.iterdir()]
            size, weight = sum(file.stat().st_size for file in files if file.is_file()), weights.get(member.name)
            scores = self._interval(predictions_of(self.auto.out_of_fold(state), self.auto.space))
            note = "this score is without its thresholds" if has_thresholds and is_single and weight else ""
            rows.append(replace(row, **scores, bytes=size, weight=weight, note=note))
        if not is_single:
            parts = [row for row in rows if row.weight is not None]
            fusion = LeaderboardRow(
                "fusion",
                "fusion",
                fused.fusion.kind,
                **self._interval(fused.predictions),
                seconds=sum(row.seconds for row in parts),
                bytes=sum(row.bytes for row in parts),
                weight=1.0,
                note="with thresholds" if has_thresholds else "",
            )
            rows.append(fusion)
        return ranked(rows, self.auto.metric)

    def _interval(self, predictions: np.ndarray) -> dict[str, Any]:
        """Return `score`, `low` and `high` of out-of-fold predictions."""
        key = predictions.tobytes()
        if key not in self.auto.intervals:
            values = score_interval(
                self.auto.metric,
                self.labels,
                predictions,
                generator=numpy_generator("auto estimate", self.seed),
                groups=self.auto.groups,
                resamples=_RESAMPLES if len(self.labels) <= _MANY_ROWS else _FEWER_RESAMPLES,
            )
            scores = dict(zip(("score", "low", "high"), map(float, values), strict=True))
            self.auto.intervals[key] = without_nan(scores)
        return self.auto.intervals[key]

    # The model.

    def _write_model(self, best: _Fused, *, wants_single: bool) -> str | None:
        """Write the delivered model: a run, an ensemble, or an encoder that learns from the ensemble."""
        empty_folder(self.auto.folder, keep=(WORK_FOLDER,))
        why = None
        try:
            if wants_single:
                self.auto.display.say("distilling")
                return self._write_single(best)
        except OutOfTime:
            why = "No time was left to distil it into one encoder: give more with --time_limit and --resume."
        except Interrupted:
            why = "It was not distilled into one encoder before the interruption."
        empty_folder(self.auto.folder, keep=(WORK_FOLDER,))
        self._write_fused(best)
        return why

    def _write_fused(self, fused: _Fused) -> None:
        """Write the run itself if it is one, else an ensemble."""
        self.delivered, run = fused, self._only_run(fused)
        self.reads_columns = "columns-linear" in fused.fusion.members
        if run is None:
            self._save_ensemble(self.auto.folder, fused)
            self._write_config(self.auto.config)
        else:
            self._write_run(run)

    def _reject(self, best: _Fused) -> str | None:
        """Choose by out-of-fold predictions which texts are rejected, save it, and return a sentence.

        By the energies of its members; an encoder that learned from the ensemble has its probabilities, and so its
        threshold.
        """
        share, fused = self.auto.config.training.reject, self.delivered or best
        is_right_N = fused.predictions == self.labels
        if share is None:
            return None
        if not is_right_N.any() or fused.fusion.members == ("majority",):
            return "No text is rejected: the delivered model's certainty says nothing about a text."
        scores, weights = {"probability": maximum_probability(fused.logits, self.auto.space)}, None
        if self.delivered is not None:
            states = {state.member.name: state for state in self.auto.states}
            shares = fused.fusion.member_weights()
            energies_NM = np.column_stack(
                [
                    held_out_energies(states[name].run_folders(), len(self.auto.folds_N))[self.auto.scored]
                    for name in shares
                ]
            )
            if self._only_run(fused) is None:
                weights = energy_weights(energies_NM, tuple(shares.values()))
            scores = {"energy": energies_NM @ np.array(weights or [1.0])}
        rejection = fit_rejection(scores, is_right_N, share, weights=weights)
        rejection.save(self.auto.folder)
        return rejection.sentence()

    def _write_run(self, run: Path) -> None:
        """Copy the files of a run or baseline, by hard links where the file system has them."""
        folder, config = self.auto.folder, run / CONFIG_FILE
        with storage_errors(folder):
            for file in sorted(run.iterdir()):
                if not file.is_file() or file.name in _FOLD_FILES:
                    continue
                try:
                    os.link(file, folder / file.name)
                except OSError:
                    shutil.copy2(file, folder / file.name)
        self._write_config(load_config(config, as_record=True) if config.is_file() else self.auto.config)

    def _write_config(self, config: Config) -> None:
        training = replace(config.training, output_dir=str(self.auto.folder), resume=False, overwrite_output_dir=False)
        # All rows are used, so none of them may be scored as validation rows later.
        data = replace(with_columns(self.auto.config.data, self.auto.data.columns), validation_share=0.0)
        data = data if self.reads_columns else replace(data, extra_columns=None)
        write_text(self.auto.folder / CONFIG_FILE, to_yaml(replace(config, training=training, data=data)))

    def _only_run(self, fused: _Fused) -> Path | None:
        """Return the run that a fusion is, or None if it has several or decision thresholds."""
        folders = [folder for parts in self._folders(fused).values() for folder in parts]
        return folders[0] if len(folders) == 1 and fused.label_space == self.auto.space else None

    def _folders(self, fused: _Fused) -> dict[str, list[Path]]:
        """Return the run folders of each member, absolute, since `save_ensemble` reads relative ones as in its own."""
        by_name = {state.member.name: state for state in self.auto.states}
        return {name: [folder.absolute() for folder in by_name[name].folders()] for name in fused.fusion.members}

    def _speed_notes(self) -> list[str]:
        """Return a note on the speed of what is delivered if more than one model reads a text."""
        auto, speeds = self.auto, self.auto.schedule.speed.encoders
        member_of = {state.member.name: state.member for state in auto.states}
        folders = {} if self.delivered is None else self._folders(self.delivered)
        # Baselines share the vectors of their encoder.
        models = {
            (member_of[name].encoder, None if member_of[name].is_baseline else part)
            for name, parts in folders.items()
            for part in parts
        }
        passes = Counter(encoder for encoder, _ in models if encoder is not None)
        if passes.total() < 2 or not passes.keys() <= speeds.keys():
            return []
        token_s = sum(count / speeds[encoder].predict_tokens_per_s for encoder, count in passes.items())
        texts_per_s = float(f"{1 / (token_s * auto.tokens_per_row):.2g}")
        return [
            f"{passes.total()} models read each text: a worker predicts about {texts_per_s:,g} texts a second."
            " --deliver single makes one model of them."
        ]

    def _save_ensemble(self, folder: Path, fused: _Fused) -> None:
        save_ensemble(folder, self._folders(fused), fused.fusion, fused.label_space, self.auto.data.is_pair)

    # One encoder that learns from an ensemble.

    def _write_single(self, best: _Fused) -> str:
        """Write a model that needs one encoder, by distilling if need be; return a sentence on its cost."""
        if self._only_run(best) is not None:
            self._write_fused(best)
            return "It is a single model already."
        members = [state.member for state in self.auto.states if state.member.name in best.fusion.members]
        if all(one.is_baseline for one in members) and len({one.encoder for one in members} - {None}) <= 1:
            self._write_fused(best)
            return "All its members are baselines, which share one encoder."
        self._save_ensemble(self.auto.work, best)
        folder = self.auto.work / SINGLE_FOLDER
        complete = {state.member.name: state for state in self.auto.states if state.is_complete}
        baselines = {name: state for name, state in complete.items() if state.member.is_baseline}
        result = self._distill(best, folder, baselines)
        facts = result.train.get("distillation", {})
        if rivals := facts.get("rivals"):
            sign = 1 if self.auto.metric.greater_is_better else -1
            name = max(rivals, key=lambda name: sign * rivals[name])
            if sign * rivals[name] > sign * facts["single"]:
                self.better = baselines[name]
                return (
                    f"{name} is delivered: its {facts['metric']} is {rivals[name]:.4f} on {facts['rows']:,}"
                    f" {facts['scored']}, that of an encoder distilled from the ensemble {facts['single']:.4f}."
                )
        self._write_run(folder)
        return result.notes[-1]

    def _distill(self, fused: _Fused, folder: Path, baselines: Mapping[str, MemberState]) -> RunResult:
        """Train one encoder on the ensemble's out-of-fold predictions; its record compares it with the ensemble."""
        auto = self.auto
        used = np.flatnonzero(auto.folds_N >= 0)
        shutil.rmtree(folder, ignore_errors=True)
        training = replace(auto.config.training, resume=False, overwrite_output_dir=False, output_dir=str(folder))
        return Distillation(
            teacher=Predictor.load(auto.work),
            data=replace(auto.data, splits={**auto.data.splits, "train": auto.rows.take(used)}),
            config=replace(auto.config, training=training),
            out_of_fold=self._on_all_rows(fused.logits)[used],
            folds=auto.folds_N[used] - 1,
            rivals={
                name: (state.folders()[0], self._on_all_rows(auto.out_of_fold(state))[used])
                for name, state in baselines.items()
                if len(state.folders()) == 1
            },
            unlabeled=auto.unlabeled,
            max_steps=self._distillation_updates(fused),
            left_s=lambda: auto.left_s,
        ).run()

    def _on_all_rows(self, logits: np.ndarray) -> np.ndarray:
        """Return logits of the scored rows as (N, C) logits of all rows, NaN in the others."""
        logits_NC = np.full((len(self.auto.folds_N), self.auto.space.num_labels), np.nan)
        logits_NC[self.auto.scored] = logits
        return logits_NC

    def _distillation_updates(self, fused: _Fused) -> int | None:
        """Return the updates that fit into the time left, if those of the members do not."""
        used = [state for state in self.auto.states if state.member.name in fused.fusion.members]
        records = [state.records[fold] for state in used if not state.member.is_baseline for fold in state.done]
        if not records or self.auto.config.training.num_train_epochs is not None:
            return None
        longest = max(records, key=lambda record: record.wall_seconds)
        updates = longest.config["training"]["max_steps"]
        update_s = TIME_MARGIN * training_runs(self.auto.data) * longest.wall_seconds / updates
        fitting = int(self.auto.left_s / update_s)
        return None if fitting >= updates else max(fitting, min(updates, FEWEST_UPDATES))

    # Scores and records.

    def _score(self, notes: list[str]) -> dict[str, dict[str, float]]:
        """Score the delivered model on validation and test rows in the time left; write its predictions."""
        splits = {name: rows for name, rows in self.auto.data.splits.items() if name != "train"}
        scores: dict[str, dict[str, float]] = {}
        if splits and not self.stop.requested:
            with contextlib.suppress(Stopped, OutOfTime), raise_on_signal(self.stop):
                self._score_splits(splits, scores)
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

        auto, predictor = self.auto, Predictor.load(self.auto.folder)
        evaluator = predictor.evaluator(replace(auto.data, splits=splits))
        names = tuple(dict.fromkeys((*auto.data.metrics, auto.metric.name)))
        for split, rows in splits.items():
            auto.display.say(f"scoring {len(rows):,} {split} rows")
            logits_NC = evaluator.predict(split, check_time)
            text = predictions_csv(rows, logits_NC, predictor.label_space)
            write_text(auto.folder / f"predictions_{split}.csv", text)
            if rows.labels is not None and len(rows):
                scores[split] = score_predictions(names, rows.labels, logits_NC, predictor.label_space)

    def _write_records(self, result: AutoResult) -> None:
        """Write the leaderboard, the card, the scores, and last the record of the run."""
        auto = self.auto
        write_text(auto.work / LEADERBOARD_FILE, to_json(result.to_dict()))
        write_text(auto.folder / "README.md", card(result))
        record = RunResult(
            scores={split: dict(part) for split, part in result.scores.items()},
            train={
                "seconds": round(result.seconds, 3),
                "rows": int((auto.folds_N >= 0).sum()),
                **row_facts(auto.rows),
                "folds": max(1, int(auto.folds_N.max())),
                "members": [row.name for row in result.delivered],
                "estimate": result.estimate,
            },
            best=None,
            config=to_dict(auto.config),
            seed=self.seed,
            versions=versions(),
            data_fingerprint=auto.data.fingerprint(),
            notes=[*auto.data.notes, *result.notes, result.reason],
        )
        write_text(auto.folder / METRICS_FILE, to_json(record.metrics()))
        write_text(auto.folder / RESULT_FILE, record.to_json())
