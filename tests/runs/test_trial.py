"""One run of a search: the rows it sees, and that it really ends early where others did better."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from attentune.config import load_config, to_dict
from attentune.errors import DataError
from attentune.results import SEARCH_FILE
from attentune.runs.search_plan import Rows, SearchPlan
from attentune.runs.search_settings import SamplerConfig, SelectionCriterion, TrialSettings
from attentune.runs.space import Dimension, Space
from attentune.runs.study import SearchStudy
from attentune.runs.worker import execute_run
from attentune.training.run_folder import StopRequest
from helpers.samples import settings
from helpers.tasks import small_record


def plan_of(folder: Path, encoder: Path, space: Space, sampler_config: SamplerConfig, **changes: object) -> SearchPlan:
    values = settings(folder, encoder, **changes)
    del values["training.output_dir"]
    study = SearchStudy(folder, space, sampler_config, SelectionCriterion())
    return SearchPlan(study, TrialSettings(None, "bert", values), Rows(share=0.5), [42, 43])


def work(plan: SearchPlan) -> None:
    """Execute what waits, in this process."""
    (plan.study.folder / SEARCH_FILE).touch()
    for run in plan.runs:
        record = execute_run(pickle.loads(pickle.dumps(plan.task(run))), stop=StopRequest())
        assert record is not None
        plan.record_store.write(record, plan.record_store.run_folder(run))
        plan.record_store.tidy(run)


@pytest.mark.integration
def test_a_run_that_does_worse_than_others_ends_after_an_epoch(tiny, tmp_path):
    space = Space((Dimension("training.learning_rate", (1e-9, 1e-3)),))
    sampler_config = SamplerConfig("grid", "median", startup=1, seed=1)
    plan = plan_of(tmp_path, tiny("bert"), space, sampler_config, training__num_train_epochs=3)
    study = plan.study
    # The first trial was right on all rows from the beginning.
    assert study.add()
    study.report("trial-0001", dict.fromkeys((1, 2, 3), 1.0))
    study.finish("trial-0001", "done", 1.0, scores=[1.0], seconds=1.0)
    plan.advance(2, ())
    assert [run.name for run in plan.runs] == ["own/all/trial-0002/seed-42"]
    assert (len(plan.later), plan.is_complete) == (1, False)  # the other seed waits for the first one's word
    work(plan)
    plan.advance(2, ())
    trial = study.trials()[1]
    assert trial.status == "pruned"
    assert trial.message.startswith("accuracy 0.")
    assert trial.message.endswith("when scored once, worse than others by then")
    record = plan.record_store.load(plan.runs[0])
    assert (record.status, record.score, record.is_done) == ("pruned", None, False)
    assert [line["step"] for line in record.curve][-1] == 3  # of nine
    assert record.error is not None
    assert record.error["traceback"] is None
    assert not (tmp_path / "runs").exists()
    assert plan.is_complete
    assert not plan.later


def test_records_are_taken_in_by_their_settings_when_the_study_is_lost(tiny, tmp_path):
    space = Space((Dimension("training.learning_rate", (1e-4, 1e-3, 2e-3)),))
    plan = plan_of(tmp_path, tiny("bert"), space, SamplerConfig("grid", seed=1))
    plan.advance(2, ())
    for run, rate in zip(plan.runs, (None, 7e-3), strict=True):
        config = to_dict(plan.task(run).config())
        if rate is not None:  # of another draw
            config["training"]["learning_rate"] = rate
        record = replace(small_record(run, score=0.75), config=config)
        plan.record_store.write(record, tmp_path)
    plan.advance(2, ())
    first, second = plan.study.trials()
    assert (first.status, second.status) == ("running", "running")  # the first has one seed of two
    assert [run.name.split("/", 2)[2] for run in plan.runs] == [
        "trial-0001/seed-42", "trial-0001/seed-43", "trial-0002/seed-42",
    ]  # fmt: skip
    assert not plan.record_store.has(plan.runs[2])


def test_values_that_do_not_go_together_fail_their_trial_only(tiny, tmp_path):
    space = Space(
        (Dimension("labels.generator", ("none", "gradient")), Dimension("model.token_gate.kind", ("none", "ssa")))
    )
    plan = plan_of(tmp_path, tiny("bert"), space, SamplerConfig("grid", seed=1))
    plan.advance(4, ())
    trials = plan.study.trials()
    failed = [trial for trial in trials if trial.status == "failed"]
    assert [trial.params for trial in failed] == [{"labels.generator": "gradient", "model.token_gate.kind": "none"}]
    assert "gradient makes token labels" in failed[0].message
    assert len(trials) == 4
    assert {run.method for run in plan.runs} == {trial.name for trial in trials} - {failed[0].name}


def test_rows_are_the_same_for_every_trial_and_dev_stays_out(tiny, tmp_path):
    values = settings(tmp_path, tiny("bert"))
    config = load_config(overrides=values)
    data = Rows(share=0.25, seed=3).load(config)
    assert {name: len(rows) for name, rows in data.splits.items()} == {"train": 36, "validation": 12}
    assert not {*data.splits["train"].ids} & {*data.splits["validation"].ids}
    assert "Dev is not looked at." in data.notes[-1]
    other = load_config(overrides={**values, "training.seed": 9, "training.learning_rate": 1e-6})
    assert Rows(share=0.25, seed=3).load(other).fingerprint() == data.fingerprint()
    assert Rows(share=0.25, seed=4).load(other).fingerprint() != data.fingerprint()
    dev = Rows("dev", seed=3).load(config)
    assert {name: len(rows) for name, rows in dev.splits.items()} == {"train": 48, "validation": 20}
    fewer = load_config(overrides={**values, "data.max_train_samples": 20, "data.max_eval_samples": 4})
    found = Rows(share=0.5, seed=3).load(fewer)
    assert {name: len(rows) for name, rows in found.splits.items()} == {"train": 10, "validation": 4}
    one = load_config(overrides={**values, "data.max_train_samples": 1})
    with pytest.raises(DataError, match="has 1 labelled training rows, so none can be cut"):
        Rows().load(one)


def test_a_dev_that_is_cut_from_the_training_file_stays_out_too(tiny, tmp_path):
    values = settings(tmp_path, tiny("bert"), data__validation_file=None, data__validation_share=0.25)
    config = load_config(overrides=values)
    from attentune.data.load import load_data

    whole, found = load_data(config.data, seed=42), Rows(share=0.5, seed=42).load(config)
    assert {*found.splits["train"].ids, *found.splits["validation"].ids} == {*whole.splits["train"].ids}
