"""Two processes on one CPU train as one with batches of twice the size, token labels and all.

Each process is this file as a program: `test_processes.py JOBS.json FOLDER`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator
from accelerate.utils import DistributedType
from safetensors.numpy import load_file

from attentune.config import load_config
from attentune.errors import CheckpointError, ConfigError
from attentune.inference.scoring import check_whole_models, score_rows
from attentune.token_labels.plan import EpochPlan
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from attentune.training.trainer import Trainer
from helpers.interrupted import LABELS_FILE, log_of, run, without_times
from helpers.samples import settings, write_reviews

pytestmark = pytest.mark.integration

Tiny = Callable[..., Path]
WAIT_S = 240
# A large epsilon: else AdamW makes whole steps of what rounding leaves where a gradient is zero.
METHOD: dict[str, Any] = {
    "preset": "ssa-co",
    "model__dropout": 0,
    "model__head__dropout": 0,
    "training__precision": "fp32",
    "training__num_train_epochs": 3,
    "training__adam_epsilon": 1e-4,
}
GENERATORS: dict[str, dict[str, Any]] = {
    "flip": {},
    # 41 rows and 16 extra ones in batches of 8: of the last batch, which has one row, the second process has none.
    "uneven": {
        "labels__generator": "flip",
        "labels__mask_share": 0.8,
        "training__gradient_accumulation_steps": 3,
        "data__max_train_samples": 41,
    },
}
EPOCHS = (0, 1, 2)


def method(name: str, folder: Path) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if name == "uneven":
        file = write_reviews(folder / "silver.csv", 16, seed=9)
        more = {"data__extra_train_files": [str(file)], "data__extra_train_weights": [0.3]}
    return METHOD | {"labels__generator": name} | GENERATORS[name] | more


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def launch(*words: str) -> str:
    """Two processes of `python WORDS`; their standard output. Nothing of them outlives `WAIT_S`."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [*launcher, "--master_addr", "127.0.0.1", "--master_port", str(free_port()), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"not done after {WAIT_S} s:\n{process.communicate()[1][-3000:]}")
    assert process.returncode == 0, errors[-3000:]
    return output


def train_jobs(jobs: str, folder: str) -> None:
    """Train settings by name in each process; save its token labels and the logits that it gathered from all rows."""
    plan_epoch = Trainer.plan_epoch
    # `end_training` destroys the process group, which the next run needs.
    Accelerator.end_training = lambda self: None
    for name, overrides in json.loads(Path(jobs).read_text()).items():
        seen: dict[str, np.ndarray] = {}

        def recorded(self: Trainer, seen: dict[str, np.ndarray] = seen) -> EpochPlan:
            epoch, inputs = self.state.epoch, self.inputs
            if "logits" not in seen:  # 41 or 48 rows are five batches: three for the first process, two for the other
                model, pad = self.accelerator.unwrap_model(self.wrapped), inputs.tokenizer.pad_token_id
                options = {"pad_token_id": pad, "accelerator": self.accelerator, "batch_size": 10}
                seen["logits"] = score_rows(model, inputs.features["train"], **options).logits_NC
            made = plan_epoch(self)
            seen[f"rows-{epoch}"] = made.rows
            if made.token_labels is not None:
                seen[f"values-{epoch}"] = made.token_labels.values
            return made

        Trainer.plan_epoch = recorded
        result = train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
        seen["processes"] = np.array(result.train["processes"])
        np.savez(Path(folder) / f"{name}-{Accelerator().process_index}.npz", **seen)


@pytest.fixture(scope="module")
def both(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs NAME-two and NAME-one, and what each of the two processes saw as NAME-PROCESS.npz."""
    folder = tmp_path_factory.mktemp("processes")
    jobs = {}
    for name in GENERATORS:
        changes = method(name, folder) | {"training__output_dir": str(folder / f"{name}-two")}
        jobs[name] = settings(folder, tiny("bert"), training__per_device_train_batch_size=4, **changes)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    launch(__file__, str(folder / "jobs.json"), str(folder))
    for name in GENERATORS:
        run(folder, tiny("bert"), **method(name, folder), training__output_dir=str(folder / f"{name}-one"))
    return folder


@pytest.mark.parametrize("name", GENERATORS)
def test_both_processes_have_the_labels_weights_and_log_of_one(both: Path, name: str) -> None:
    first, second = (np.load(both / f"{name}-{process}.npz") for process in (0, 1))
    assert first["processes"] == second["processes"] == 2
    assert set(first.files) == set(second.files)
    assert set(first.files) >= {f"rows-{epoch}" for epoch in EPOCHS} | {"values-1", "values-2"}
    for key in first.files:
        assert np.array_equal(first[key], second[key]), key
    for epoch in (1, 2):
        assert {0.0, 1.0} <= set(first[f"values-{epoch}"].tolist())
    # Of an odd number of batches, too; a row that no process scored would be zero.
    assert (np.abs(first["logits"]).max(axis=1) > 0).all()
    one, two = (load_file(both / f"{name}-{count}" / LABELS_FILE) for count in ("one", "two"))
    assert one.keys() == two.keys()
    for key in one:
        assert np.array_equal(one[key], two[key]), key
    one, two = (load_file(both / f"{name}-{count}" / "model.safetensors") for count in ("one", "two"))
    for key, weight in one.items():
        np.testing.assert_allclose(two[key], weight, atol=1e-4, rtol=0, err_msg=key)
    logs = [[without_times(line) for line in log_of(both / f"{name}-{count}")] for count in ("one", "two")]
    assert len(logs[0]) == len(logs[1])
    for ours, theirs in zip(*logs, strict=True):
        assert flat(theirs) == {key: pytest.approx(value, abs=2e-4) for key, value in flat(ours).items()}


def flat(line: dict[str, Any]) -> dict[str, Any]:
    """The labels' facts of a line of the log beside its others."""
    return {key: value for key, value in line.items() if key != "labels"} | line.get("labels", {})


def test_the_command_line_under_two_processes(tiny: Tiny, tmp_path: Path) -> None:
    values = settings(tmp_path, tiny("bert"), training__per_device_train_batch_size=4, training__num_train_epochs=2)
    flags = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    output = launch("-m", "attentune.cli.main", "train", "--preset", "ssa-hybrid", "--format", "json", *flags)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert json.loads(output)["validation"] == record["scores"]["validation"]  # one of the two speaks
    assert (record["train"]["processes"], record["train"]["steps"]) == (2, 12)
    assert record["train"]["label_seconds"] > 0
    assert (load_file(tmp_path / "run" / LABELS_FILE)["values"] >= 0).sum() > 50
    lines = log_of(tmp_path / "run")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert [line["epoch"] for line in lines if "labels" in line] == [0, 1]
    # One process would go on with other batches.
    (tmp_path / "run" / "run.json").unlink()
    values |= {"preset": "ssa-hybrid", "training.resume": True}
    with pytest.raises(CheckpointError, match="processes"):
        train(load_config(overrides=values), display=ProgressDisplay(quiet=True))


def test_models_spread_over_processes_are_refused() -> None:
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP)
    with pytest.raises(ConfigError, match=r"started with FSDP, which shards a model .* expected one that gives each"):
        check_whole_models(accelerator)


if __name__ == "__main__":
    train_jobs(*sys.argv[1:])
