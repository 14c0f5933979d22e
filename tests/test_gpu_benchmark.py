"""`benchmarks.gpu`: on a CPU it tests itself, and what differs from the CPU's result makes it fail."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def gpu():
    """The package behind `python -m benchmarks.gpu`, with its modules."""
    sys.path.insert(0, str(ROOT))
    try:
        import benchmarks.gpu.__main__ as program

        yield program
    finally:
        sys.path.remove(str(ROOT))


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.integration
def test_parts_run_on_a_cpu_and_leave_no_record(gpu, without_gpu, tmp_path, capsys):
    record = tmp_path / "gpu.jsonl"
    parts = ["--parts", "training,presets,resume", "--presets", "ssa-hybrid,task-attention,cosine"]
    status = gpu.main([*parts, "--contenders", "fp32, sdpa"], record)
    said = capsys.readouterr().out
    assert status == 0, said
    assert not record.exists()
    assert "a test of the program, not a measurement" in said
    assert "all parts passed" in said
    lines = [line.split(" | ") for line in said.splitlines() if line.startswith("| ")]
    found = {line[0].removeprefix("| "): line[1:] for line in lines}
    assert {"Trainer, fp32, sdpa", "attentune bert, fp32, sdpa", "attentune ssa-hybrid, fp32, sdpa"} <= found.keys()
    assert all(int(found[name][0]) > 0 for name in found if name.endswith("sdpa"))
    # Labels of tokens were compared, and the attention that stands for the device rounds otherwise: logits of eight
    # rows can be the same by chance, the gradients of a hundred parameters cannot.
    single = next(line for line in lines if line[:2] == ["| ssa-hybrid", "single"])
    assert int(single[-2]) > 0
    assert float(single[4]) > 0
    assert any("takes no single texts" in line for line in said.splitlines() if line.startswith("| cosine | single"))
    assert found["killed and resumed"][:2] == ["0.0e+00", "0.0e+00"]


@pytest.mark.integration
def test_a_preset_outside_of_the_tolerance_makes_the_status_1(gpu, without_gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu.correctness, "LOGIT_TOLERANCE", -1.0)  # equal logits are outside too
    assert gpu.main(["--parts", "presets", "--presets", "bert"], tmp_path / "gpu.jsonl") == 1
    said = capsys.readouterr().out
    assert "FAILED: bert, check-single: logits differ by" in said
    assert "2 problems" in said


def test_an_error_of_a_part_is_a_problem_and_the_others_run(gpu, without_gpu, monkeypatch, tmp_path, capsys):
    def fail(work: object) -> list[object]:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setitem(gpu.PARTS, "labels", fail)
    monkeypatch.setitem(gpu.PARTS, "resume", lambda work: [gpu.Part("resume", {}, ["| as it was |"])])
    assert gpu.main(["--parts", "labels,resume"], tmp_path / "gpu.jsonl") == 1
    said = capsys.readouterr().out
    assert "FAILED: RuntimeError: CUDA error: out of memory" in said
    assert "| as it was |" in said


def test_a_wrong_gradient_of_a_small_parameter_is_found(gpu):
    compare = gpu.correctness.gradient_difference
    expected = {"encoder": torch.randn(100, 100), "blur.sigma": torch.tensor([0.1])}
    assert compare(expected, {name: gradient * (1 + 1e-6) for name, gradient in expected.items()})[0] < 0.01
    worst, parameter = compare(expected, {**expected, "blur.sigma": torch.tensor([-0.1])})
    assert parameter == "blur.sigma"
    assert worst > 10
    assert compare(expected, {"encoder": expected["encoder"]}) == (float("inf"), "blur.sigma")


def test_ratios_are_to_the_fastest_trainer_of_the_precision(gpu):
    made = gpu.training.Contender
    found = [
        made(None, "fp32"),
        made(None, "fp32", "eager"),
        made("bert", "fp32"),
        made(None, "bf16", is_compiled=True),
    ]
    seconds = dict(zip((one.name for one in found[:3]), (2.0, 4.0, 1.0), strict=True))
    fixed = {"first_epoch_seconds": 9.0, "peak_memory_bytes": 2**20}
    runs = {name: [{"epoch_seconds": value, **fixed}] for name, value in seconds.items()}
    runs[found[3].name] = [{"reason": "no compiler"}]
    lines = gpu.training.summary(runs, found, 1000)
    assert [lines[one.name].get("ratio") for one in found] == [1.0, 0.5, 2.0, None]
    assert lines["attentune bert, fp32, sdpa"]["tokens_per_second"] == 1000
    assert "Trainer, bf16, sdpa, compiled: no compiler" in gpu.training.lines_of(lines, ("ratio",))


def test_runs_that_differ_in_weights_log_or_scores_are_told(gpu, tmp_path):
    def run(name: str, *, weight: float = 0.5, loss: float = 0.7, accuracy: float = 0.5, **more: float) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        save_file({"w": np.array([1.0, weight])}, folder / "model.safetensors")
        (folder / "run.json").write_text(json.dumps({"scores": {"validation": {"accuracy": accuracy}}}))
        line = {"step": 1, "loss": loss, "seconds": len(name), "labels": {"ones": 3, **more}}
        (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
        return folder

    whole = run("whole")
    limits = {"weights": 1e-4, "log": 1e-4}
    compared = gpu.processes.compared
    assert compared("x", whole, run("equal", weight=0.50001), **limits)[1] == []
    changed = {"weight": {"weight": 0.501}, "loss": {"loss": 0.701}, "scores": {"accuracy": 0.6}, "lines": {"zeros": 2}}
    said = {name: compared("x", whole, run(name, **values), **limits)[1] for name, values in changed.items()}
    assert said == {
        "weight": ["x: weights differ by 0.001, expected at most 0.0001"],
        "loss": ["x: the logs differ by 0.001, expected at most 0.0001"],
        "scores": ["x: scores are {'accuracy': 0.6}, expected {'accuracy': 0.5}"],
        "lines": ["x: the logs differ by inf, expected at most 0.0001"],
    }
