"""Training speed of the families of encoders against transformers' Trainer at its best, side by side in one run.

    python -m benchmarks.speed.families --record NAME [--families distilbert,albert] [--tasks cola,rte] [--rows 300,100]
                                        [--repeats 2] [--threads 1] [--clock cpu]

Each family's encoder has the size of the embedded one (6 layers, 384 wide, 12 heads), random weights and the embedded
encoder's tokenizer, so that all families read the same tokens. ModernBERT's feed-forward network, of three matrices
instead of two, is 1024 wide instead of 1536, so that it has as many weights. Everything else is the family's default.
`--clock cpu` measures processor time, on one thread, where other programs use the machine. Writes a line of
results/bench/families.jsonl, named NAME, and prints a table; one run of each contender in every repeat, each in a
process of its own. Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from attentune.models.build import resolve_encoder
from benchmarks.common import RECORDS, command_of, compared, interleaved_runs, table, write_line

TARGET = RECORDS / "families.jsonl"
REFERENCE, OURS = "Trainer at its best", "attentune bert"
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
# What a family's own checkpoints have and its configuration class does not set; deberta-v2 is as microsoft/deberta-v3.
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {},
    "distilbert": {"hidden_dim": 1536},
    "albert": {"embedding_size": 128, "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
    "mpnet": {"max_position_embeddings": 514},
    "modernbert": {"intermediate_size": 1024},
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


def save_encoder(family: str, folder: Path, **sizes: int) -> None:
    """Save an encoder of this family with random weights."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_encoder("embedded"))
    ids = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    ids |= {f"{kind}_token_id": tokenizer.cls_token_id for kind in ("bos", "cls")}
    ids |= {f"{kind}_token_id": tokenizer.sep_token_id for kind in ("eos", "sep")}
    torch.manual_seed(0)
    AutoModel.from_config(
        AutoConfig.for_model(family, **{**SIZES, **ids, **SETTINGS[family], **sizes})
    ).save_pretrained(folder)
    names = {f"{kind}_token": getattr(tokenizer, f"{kind}_token") for kind in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **names).save_pretrained(folder)


def line(task: str, family: str, found: dict[str, Any]) -> list[str]:
    """Return a line of the printed table."""
    if "reasons" in found:
        return [task, family, str(found["reasons"]), "", "", ""]
    speeds, memory = found["tokens_per_second"], found["peak_memory_mib"]
    both = [f"{own[REFERENCE]} / {own[OURS]}" for own in (speeds, memory)]
    return [task, family, both[0], str(found["ratio"]), both[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", required=True, help="the record's name")
    parser.add_argument("--families", default=",".join(SETTINGS))
    parser.add_argument("--tasks", default="cola,rte")
    parser.add_argument("--rows", default="300,100")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="elapsed", choices=("elapsed", "cpu"))
    given = parser.parse_args()
    os.environ["ATTENTUNE_BENCH_CLOCK"] = given.clock
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    families: dict[str, Any] = {}
    record = {
        "record": given.record,
        "command": command_of("benchmarks.speed.families", sys.argv[1:]),
        "threads": given.threads,
        "clock": given.clock,
        "families": families,
    }
    lines = []
    for family in given.families.split(","):
        with tempfile.TemporaryDirectory() as folder:
            save_encoder(family, Path(folder))
            for task, rows in zip(given.tasks.split(","), given.rows.split(","), strict=True):
                runs = interleaved_runs(
                    "benchmarks.speed.peer_runs", (REFERENCE, OURS), given.repeats, task, rows, folder
                )
                families.setdefault(family, {})[task] = {"rows": int(rows), **compared(runs, REFERENCE, OURS)}
                lines.append(line(task, family, families[family][task]))
                print(*lines[-1], file=sys.stderr, sep=" | ", flush=True)
        write_line(TARGET, record)
    print("\n".join(table(["task", "family", "tokens/s, Trainer / ours", "ratio", "peak MiB"], lines)))


if __name__ == "__main__":
    main()
