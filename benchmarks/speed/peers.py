"""Speed against other trainers, and against transformers' pipeline: same encoder, same rows, side by side in one run.

    python -m benchmarks.speed.peers --record NAME [--parts training,prediction] [--tasks cola,rte,sst2]
        [--rows 1000,500,8000] [--repeats 3] [--contenders "Trainer at its best;attentune bert"]
        [--families embedded,distilbert] [--size base] [--batch_size 8]
        [--processors own,avx2] [--threads 1] [--clock cpu] [--scored_rows 64]

Prints a table for each task and adds a line, named NAME, to results/bench/peers.jsonl: real tokens and texts a second,
the ratios to the Trainer and the pipelines, seconds (of two epochs, or of all texts), peak memory, score on the
validation file. Each run has a process of its own; each repeat runs every contender once. Of a contender that is not
installed, or that cannot do a task, the reason is recorded. Predictions are those of a run of `bert`. Texts are cut at
128 tokens, those of cfimdb (film reviews of a page) at 512. Needs the data: $ATTENTUNE_DATA, else ../shared/data.

Families have the size of the embedded encoder (6 layers, 384 wide, 12 heads), random weights and its tokenizer, so that
all read the same tokens. ModernBERT's feed-forward network, of three matrices instead of two, is 1024 wide instead of
1536, so that it has as many weights. Everything else is the family's default. With `--size base` they have 12 layers,
768 wide, and feed-forward networks in proportion.

Processors: oneDNN, MKL and PyTorch are told which instructions they may use, and our C code is compiled for these, so
one machine stands for older ones; clock rates, caches and memory stay its own. `avx512` and `avx2` compute in float32.
`--clock cpu` measures processor time, on one thread, where other programs use the machine.
"""

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from attentune.models.build import resolve_encoder
from attentune.nn.compiled.native import processor_name
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from benchmarks.common import RECORDS, command_of, interleaved, lines_of, medians, one_run, write_line
from benchmarks.speed.contenders import CONTENDERS, settings

TARGET = RECORDS / "peers.jsonl"
REFERENCES = {
    "training": {"ratio": "Trainer at its best"},
    "prediction": {
        "to_default": "pipeline",
        "to_best_fp32": "pipeline at its best, fp32",
        "to_best": "pipeline at its best",
    },
}
SIZES = {
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
# What a family's own checkpoints have and its configuration class does not set; deberta-v2 is as microsoft/deberta-v3.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"max_position_embeddings": 514, "type_vocab_size": 1},
    "distilbert": {},
    "albert": {"embedding_size": 128, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
    "mpnet": {"max_position_embeddings": 514},
    "modernbert": {},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 256,
        "position_biased_input": False,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "type_vocab_size": 0,
    },
}
# What each kind needs, and the environment that makes a processor one of this kind. MKL obeys on Intel's only.
PROCESSORS: dict[str, tuple[str, dict[str, str]]] = {
    "own": ("", {}),
    "amx": ("amx_bf16", {}),
    "avx512-bf16": (
        "avx512_bf16",
        {
            "ONEDNN_MAX_CPU_ISA": "avx512_core_bf16",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3",
            "ATTENTUNE_CFLAGS": "-march=cooperlake",
        },
    ),
    "avx512": (
        "avx512f",
        {
            "ONEDNN_MAX_CPU_ISA": "avx512_core",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512",
            "ATTENTUNE_CFLAGS": "-march=x86-64-v4",
            "ATTENTUNE_BENCH_PRECISION": "fp32",
        },
    ),
    "avx2": (
        "avx2",
        {
            "ONEDNN_MAX_CPU_ISA": "avx2",
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "ATTENTUNE_CFLAGS": "-march=x86-64-v3",
            "ATTENTUNE_BENCH_PRECISION": "fp32",
        },
    ),
}


def save_encoder(family: str, folder: Path, size: str) -> None:
    """Save an encoder of this family and size with random weights."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder("embedded"))
    ids = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    ids |= {f"{kind}_token_id": tokenizer.cls_token_id for kind in ("bos", "cls")}
    ids |= {f"{kind}_token_id": tokenizer.sep_token_id for kind in ("eos", "sep")}
    inner = SIZES[size]["intermediate_size"]
    widths = {"distilbert": {"hidden_dim": inner}, "modernbert": {"intermediate_size": inner * 2 // 3}}.get(family, {})
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES[size], **widths, **ids, **FAMILIES[family]})
    AutoModel.from_config(config).save_pretrained(folder)
    names = {f"{kind}_token": getattr(tokenizer, f"{kind}_token") for kind in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **names).save_pretrained(folder)


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes that are started meanwhile."""
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        os.environ.clear()
        os.environ |= before


def source_of(part: str, family: str, task: str, folder: Path, size: str = "small") -> str:
    """Return what contenders start from, made once: an encoder, or for predictions a run of one epoch.

    A run of random weights has 64 rows: its scores say nothing.
    """
    encoder = folder / family
    if family != "embedded" and not encoder.exists():
        save_encoder(family, encoder, size)
    start = family if family == "embedded" else str(encoder)
    run = folder / f"{family}-{task}"
    if part == "prediction" and not run.exists():
        epoch = {"model.name_or_path": start, "training.num_train_epochs": 1, "data.max_eval_samples": 64}
        rows = 1000 if family == "embedded" else 64
        train(settings(task, rows, str(run), **epoch), display=ProgressDisplay(quiet=True))
    return start if part == "training" else str(run)


def one_contender(part: str, task: str, rows: int, source: str, name: str) -> dict[str, Any]:
    return one_run("benchmarks.speed.contenders", part, name, task, rows, source)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", required=True, help="the record's name")
    parser.add_argument("--parts", default="training", help="training, prediction or both, separated by a comma")
    parser.add_argument("--tasks", default="cola,rte,sst2")
    parser.add_argument("--rows", default="1000,500,8000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", help="names, separated by semicolons (default: all)")
    parser.add_argument("--families", default="embedded", help=f"embedded, {', '.join(FAMILIES)}")
    parser.add_argument("--size", default="small", choices=SIZES, help="of these families, not of embedded")
    parser.add_argument("--batch_size", default="32", help="of training")
    parser.add_argument("--processors", default="own", help=", ".join(PROCESSORS))
    parser.add_argument("--threads", type=int, help="default: all cores")
    parser.add_argument("--clock", default="elapsed", choices=("elapsed", "cpu"))
    parser.add_argument("--scored_rows", help="of the validation file (default: all)")
    given = parser.parse_args(arguments)
    chosen = {
        "ATTENTUNE_BENCH_CLOCK": given.clock,
        "ATTENTUNE_BENCH_SCORED_ROWS": given.scored_rows or "",
        "ATTENTUNE_BENCH_BATCH_SIZE": given.batch_size,
    }
    chosen |= {} if given.threads is None else {"OMP_NUM_THREADS": str(given.threads)}
    results: dict[str, Any] = {}
    record: dict[str, Any] = {
        "record": given.record,
        "command": command_of("benchmarks.speed.peers", arguments),
        "threads": given.threads or "all cores",
        "clock": given.clock,
        "results": results,
    }
    sizes = dict(zip(given.tasks.split(","), map(int, given.rows.split(",")), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        for kind, family, (task, rows), part in itertools.product(
            given.processors.split(","), given.families.split(","), sizes.items(), given.parts.split(",")
        ):
            flag, capped = PROCESSORS[kind]
            if flag and flag not in processor_name().split():
                print(f"{kind}: not measured, since this processor has no {flag}", file=sys.stderr)
                continue
            names = [one for one in CONTENDERS[part] if not given.contenders or one in given.contenders.split(";")]
            own_run = partial(one_contender, part, task, rows, source_of(part, family, task, Path(folder), given.size))
            with environment(chosen | capped):
                runs = interleaved(own_run, names, given.repeats)
            title = ", ".join((part, task, family, kind))
            results[title] = {"rows": rows, "contenders": medians(runs, REFERENCES[part]), "runs": runs}
            write_line(TARGET, record)
            columns = [
                "tokens_per_second",
                "texts_per_second",
                *REFERENCES[part],
                "seconds",
                "peak_memory_mib",
                "score",
            ]
            print("\n".join(["", title, "", *lines_of(results[title]["contenders"], columns)]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
