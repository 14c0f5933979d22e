"""Speed and correctness on a GPU: `python -m benchmarks.gpu [--parts training,presets] [--encoders 22M] [...]`.

| part | what it does |
|---|---|
| training | tokens/s and peak memory of `bert` and `ssa-hybrid` against transformers' Trainer at its best |
| prediction | texts/s against transformers' pipeline at its best |
| labels | an epoch of SSA with flip and released labels against one of `bert` |
| explanations | texts/s of explanations on the GPU and on the CPU, and that their scores are equal |
| presets | logits, losses, gradients and token labels of every preset on the GPU against the CPU, in float32 |
| resume | a run that is killed and resumed is the run that was not |

Texts are the sentences of `attentune demo`, and paragraphs of ten of them. Each part prints a table and leaves a line
in results/bench/gpu.jsonl. Without a GPU the same program runs on the CPU with a tiny encoder and few rows, which
tests the program and measures nothing; it then writes no record. The exit status is 1 if a part failed.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from attentune.config import preset_names
from benchmarks.common import RECORDS, command_of, write_line
from benchmarks.gpu import correctness, prediction, processes, training
from benchmarks.gpu.workload import ENCODERS, TEXTS, Part, Workload, device_facts, make_workload

TARGET = RECORDS / "gpu.jsonl"
PARTS: dict[str, Callable[[Workload], Iterable[Part]]] = {
    "training": training.training,
    "prediction": prediction.prediction,
    "labels": training.labels,
    "explanations": prediction.explanations,
    "presets": correctness.presets,
    "resume": processes.resume,
}


def run_part(name: str, work: Workload) -> Iterator[Part]:
    """Run a part; an error in it is one of its problems, so that the other parts still run."""
    try:
        yield from PARTS[name](work)
    except Exception as error:
        traceback.print_exc()
        yield Part(name, {}, [], [f"{type(error).__name__}: {error}"])


def names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma-separated names."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        unknown = [name for name in found if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"got {', '.join(unknown)}, expected some of {', '.join(allowed)}")
        return found

    return parse


def main(arguments: Sequence[str], target: Path = TARGET) -> int:
    """Run the parts; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=names(list(PARTS)), default=list(PARTS), help="separated by commas")
    parser.add_argument("--encoders", type=names(ENCODERS), default=list(ENCODERS), help="of training")
    parser.add_argument("--texts", type=names(TEXTS), default=list(TEXTS), help="of training and prediction")
    parser.add_argument("--contenders", help="of training: only those with one of these words (separated by ;)")
    parser.add_argument(
        "--no_compiled", action="store_true", help="of training: leave out compiled models, which take minutes"
    )
    parser.add_argument("--presets", type=names(preset_names()), help="of the part of this name; all if not given")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output_file", type=Path, default=target, help="where the records of a GPU go")
    given = parser.parse_args(arguments)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # the Trainer would use all
    with tempfile.TemporaryDirectory(prefix="attentune-gpu-") as folder:
        work = make_workload(
            Path(folder),
            encoders=given.encoders,
            texts=given.texts,
            contenders=given.contenders.split(";") if given.contenders else None,
            compiled=not given.no_compiled,
            presets=given.presets,
            repeats=given.repeats,
        )
        facts = device_facts(work.device)
        what = "measured" if work.is_measurement else "a test of the program, not a measurement; no record is written"
        print(f"device: {facts['device']}; {what}", flush=True)
        failed = []
        for name in given.parts:
            began = time.perf_counter()
            for part in run_part(name, work):
                print("\n".join(["", f"## {part.name}", "", *part.lines, *(f"FAILED: {one}" for one in part.problems)]))
                failed += [f"{part.name}: {one}" for one in part.problems]
                if work.is_measurement:
                    command = command_of("benchmarks.gpu", arguments)
                    record = {"command": command, "record": part.name, **facts, **part.facts, "problems": part.problems}
                    write_line(given.output_file, record)
            print(f"({name}: {time.perf_counter() - began:.0f} s)", flush=True)
    print(f"\n{len(failed)} problems" if failed else "\nall parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
