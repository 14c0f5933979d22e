"""Task-specific attention from the command line: Quora, STS and SST-5, saved, loaded, explained, resumed."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attentune.token_labels.plan import LABELS_FILE, load_labels

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]
QUICK = ("--num_train_epochs", "1", "--max_length", "32", "--learning_rate", "1e-3", "--use_cpu")
# Everything at once: blurred, re-weighted layers under a token gate whose labels ask the model, and cross-attention.
ALL = (
    "--set=model.blur.where=context", "--set=model.blur.sigma=0.5", "--set=model.layer_mix.squeeze=true",
    "--set=model.layer_mix.kind=weighted",
    "--set=model.token_gate.kind=ssa", "--set=labels.generator=flip", "--set=labels.mask_share=0.6",
)  # fmt: skip


def cs224n(task: str, data_dir: Path, rows: int = 48) -> tuple[object, ...]:
    return ("--max_train_samples", rows, "--task", task, "--data_dir", data_dir / "cs224n", "--max_eval_samples", 24)


def test_ssa_over_blurred_re_weighted_layers_over_cross_attention(
    attentune: Command, tiny: Tiny, tmp_path: Path, data_dir: Path
) -> None:
    run, data = tmp_path / "run", cs224n("quora", data_dir)
    flags = ("--preset", "task-attention", "--model_name_or_path", tiny("bert"), "--output_dir", run, *ALL)
    status, _, err = attentune("train", *data, *flags, *QUICK, "--num_train_epochs", 3)
    assert status == 0, err
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any(line.get("labels", {}).get("token_loss") for line in log)
    assert attentune("evaluate", run)[0] == 0
    tensors, _ = load_labels(run / LABELS_FILE)
    assert set(np.unique(tensors["values"])) >= {0.0, 1.0}


def test_doctor_counts_each_text_of_a_pair(attentune: Command, tiny: Tiny, tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    long, short = "film " * 20, "a film"
    train.write_text("sentence1,sentence2,label\n" + f"{long},{short},good\n{short},{long},bad\n" * 6)
    flags = ("--train_file", train, "--model_name_or_path", tiny("bert"), "--format", "json", "--max_length", 30)
    cuts = []
    for extra in ((), ("--pair_encoding", "bi-encoder")):
        status, out, _ = attentune("doctor", *flags, *extra)
        assert status == 0
        cuts.append(json.loads(out)["splits"]["train"]["tokens"]["longest"])
    assert cuts[0] > cuts[1] == 22
