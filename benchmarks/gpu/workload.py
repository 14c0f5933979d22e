"""What all parts work on: the device, files of texts, encoders, and the settings of a run."""

import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attentune.config import Config, load_config
from attentune.data.dataset import TextRows
from attentune.demo.domains import LABEL_NAMES, Sentence, split_sentences
from attentune.models.build import resolve_encoder
from attentune.seeding import numpy_generator
from benchmarks.common import random_encoder

# The embedded encoder, and one of the size of BERT-base with random weights.
ENCODERS = ("22M", "110M")
TEXTS = ("sentences", "paragraphs")
_SENTENCES_PER_PARAGRAPH = 10
# The position table of the tiny encoder has 160 places.
_MAX_LENGTHS = {"sentences": 64, "paragraphs": 256}
_TINY_MAX_LENGTH = 64


@dataclass
class Part:
    """What a part found."""

    name: str  # the part, with what it was run on if that varies; the name of its record
    facts: dict[str, Any]  # its record
    lines: list[str]  # its table
    problems: list[str] = field(default_factory=list)  # what failed; empty if nothing did


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The device and what runs on it."""

    device: torch.device  # the GPU, or the CPU if there is none
    folder: Path  # a temporary folder
    encoders: dict[str, Path]  # what to train, by name: folders
    small_encoder: Path  # the encoder of all other parts: the embedded one, or without a GPU a tiny one
    texts: Sequence[str]  # which files to train on and predict, of `TEXTS`
    rows: int  # training rows
    batch_size: int  # rows in a batch
    epochs: int  # of a timed run; the first is not timed, as it warms up and SSA has no labels in it
    repeats: int  # runs of each contender
    contenders: Sequence[str] | None = None  # words of which a contender's name must have one; None for all
    presets: Sequence[str] | None = None  # the presets to check; None for all
    compiled: bool = True  # whether compiled models are timed

    @property
    def is_measurement(self) -> bool:
        """Whether this runs on a GPU; on a CPU it only tests the program."""
        return self.device.type == "cuda"

    def file(self, texts: str, split: str = "train") -> Path:
        return self.folder / f"{texts}-{split}.jsonl"

    def rows_of(self, texts: str, limit: int | None = None) -> TextRows:
        """Return the validation rows of a file, without labels, for prediction."""
        lines = self.file(texts, "validation").read_text(encoding="utf-8").splitlines()[:limit]
        rows = [json.loads(line)["text"] for line in lines]
        return TextRows(tuple(map(str, range(len(rows)))), tuple(rows), None, None, texts)

    def settings(self, texts: str, encoder: Path, output_dir: Path, **changes: Any) -> dict[str, Any]:
        """Return overrides for `load_config`; "__" in the names of changes means "."."""
        values = {
            "preset": "bert",
            "model.name_or_path": str(encoder),
            "data.train_file": str(self.file(texts)),
            "data.validation_file": str(self.file(texts, "validation")),
            "data.max_length": _MAX_LENGTHS.get(texts, 64) if self.is_measurement else _TINY_MAX_LENGTH,
            "training.output_dir": str(output_dir),
            "training.overwrite_output_dir": True,
            "training.per_device_train_batch_size": self.batch_size,
            "training.num_train_epochs": self.epochs,
            "training.learning_rate": 5e-5 if self.is_measurement else 1e-3,
            "training.eval_strategy": "no",
            "training.load_best_model_at_end": False,
            "training.save_steps": 1_000_000,
            "training.baselines": "none",
            "training.precision": "fp32",
            "training.use_cpu": self.device.type == "cpu",
        }
        return values | {name.replace("__", "."): value for name, value in changes.items()}

    def config(self, texts: str, encoder: Path, output_dir: Path, **changes: Any) -> Config:
        return load_config(overrides=self.settings(texts, encoder, output_dir, **changes))


def make_workload(
    folder: Path,
    *,
    encoders: Sequence[str] = ENCODERS,
    texts: Sequence[str] = TEXTS,
    contenders: Sequence[str] | None = None,
    presets: Sequence[str] | None = None,
    repeats: int = 3,
    compiled: bool = True,
) -> Workload:
    """Write the texts and find the encoders; see `Workload`. Without a GPU everything is small and run once."""
    chosen: dict[str, Any] = {"folder": folder, "contenders": contenders, "presets": presets, "compiled": compiled}
    if torch.cuda.is_available():
        embedded = Path(resolve_encoder("embedded"))
        paths = {name: embedded if name == "22M" else _base_encoder() for name in encoders}
        sizes: dict[str, Any] = {"rows": 1600, "batch_size": 32, "epochs": 3, "repeats": repeats}
        work = Workload(
            device=torch.device("cuda"), encoders=paths, small_encoder=embedded, texts=texts, **sizes, **chosen
        )
    else:
        tiny = random_encoder(2, hidden_size=32, num_attention_heads=4, intermediate_size=64)
        sizes = {"rows": 32, "batch_size": 8, "epochs": 2, "repeats": 1}
        first: dict[str, Any] = {"encoders": {"tiny": tiny}, "texts": texts[:1]}
        work = Workload(device=torch.device("cpu"), small_encoder=tiny, **first, **sizes, **chosen)
    _write_texts(work)
    return work


def _base_encoder() -> Path:
    """Return an encoder of the size of BERT-base, 110 million parameters, with random weights."""
    return random_encoder(12, hidden_size=768, num_attention_heads=12, intermediate_size=3072)


def _write_texts(work: Workload) -> None:
    """Write the files of `TEXTS`, for training (products and restaurants) and for validation (films)."""
    splits = split_sentences(train_size=1600, seed=0)
    counts = {
        "train": (splits["train"], work.rows),
        "validation": (splits["films"], 1000 if work.is_measurement else 16),
    }
    for split, (sentences, count) in counts.items():
        order = numpy_generator("gpu-benchmark", split).permutation(len(sentences))
        shuffled = [sentences[place] for place in order]
        for texts in TEXTS:
            rows = [(one.text, one.label) for one in shuffled] if texts == "sentences" else _paragraphs(shuffled, count)
            _write_file(work.file(texts, split), rows[:count])


def _paragraphs(sentences: Sequence[Sentence], count: int) -> list[tuple[str, int]]:
    """Return texts of ten sentences of one label, and their labels."""
    draw = numpy_generator("gpu-paragraphs", len(sentences))
    groups = [[one.text for one in sentences if one.label == label] for label in range(len(LABEL_NAMES))]
    return [
        (" ".join(draw.choice(groups[row % len(groups)], _SENTENCES_PER_PARAGRAPH)), row % len(groups))
        for row in range(count)
    ]


def _write_file(path: Path, rows: Sequence[tuple[str, int]]) -> None:
    lines = [{"text": text, "label": LABEL_NAMES[label]} for text, label in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def with_attention(work: Workload, encoder: Path, attention: str) -> Path:
    """Return a copy of an encoder whose config.json names this attention implementation of transformers."""
    copy = work.folder / f"{encoder.name}-{attention}"
    if not copy.exists():
        shutil.copytree(encoder, copy, symlinks=False, ignore=shutil.ignore_patterns("onnx", "openvino", "__pycache__"))
        file = copy / "config.json"
        settings = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**settings, "attn_implementation": attention}), encoding="utf-8")
    return copy


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return the device's name and memory and the versions of CUDA and cuDNN, for records."""
    if device.type != "cuda":
        return {"device": f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"}
    found = torch.cuda.get_device_properties(device)
    return {
        "device": found.name,
        "compute_capability": f"{found.major}.{found.minor}",
        "memory_gib": round(found.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all cores"),
    }


def no_tf32() -> None:
    """Compute float32 products and convolutions in float32 on a GPU, where PyTorch convolves in TF32 by default."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
