"""`attentune predict`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import Parser, add_config_flags, config_from, overrides_of
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune predict runs/cola --text "The car honked its way down the road."
  attentune predict runs/rte --text "A cat sat." --text_pair "An animal sat."
  attentune predict runs/mine --input_file new.csv --output_file labelled.csv
  attentune predict runs/cola --task cola --data_dir glue_data --split test --output_file cola-test.csv"""


def parser() -> Parser:
    """The flags of this verb."""
    made = Parser(
        prog="attentune predict",
        usage="attentune predict RUN (--text TEXT | --input_file FILE | --task TASK) [flags]",
        description="Label texts with a saved run: a CSV with id, label (if known), prediction and probabilities.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--text", help="one text")
    made.add_argument("--text_pair", help="its second text, for a model of pairs")
    made.add_argument("--input_file", help="a file of texts: .csv .tsv .json .jsonl .parquet, also with .gz")
    made.add_argument("--split", default="test", help="with --task or --dataset_name: which split (default: test)")
    made.add_argument("--output_file", help="where the CSV goes (standard output if not given)")
    made.add_argument("--precision", help="another precision than the run's: auto, fp32, bf16, fp16")
    add_config_flags(made, sections=("data",))
    return made


def run(arguments: Sequence[str]) -> int:
    """Predict; the exit status is returned."""
    parsed, problems = parser().parse(arguments)
    named_data = {name for name in overrides_of(parsed, []) if name in ("data.task", "data.dataset_name")}
    sources = [name for name in ("text", "input_file") if getattr(parsed, name) is not None] + sorted(named_data)
    if len(sources) != 1:
        problems.append(
            f"predict: got {' and '.join(sources) or 'no texts'}, expected one of --text, --input_file, --task,"
            " --dataset_name."
        )
    if parsed.text_pair is not None and parsed.text is None:
        problems.append("--text_pair: goes with --text.")
    config = config_from(parsed, problems)

    from attentune.evaluation.predictions import predictions_csv
    from attentune.evaluation.saved import SavedRun, predict_rows
    from attentune.files import write_text

    saved = SavedRun.load(parsed.run)
    rows = _rows(parsed, config.data, saved)
    logits = predict_rows(saved, rows, precision=parsed.precision)
    text = predictions_csv(rows, logits, saved.label_space)
    if parsed.output_file is None:
        sys.stdout.write(text)
    else:
        write_text(parsed.output_file, text)
        print(f"{len(rows)} predictions written to {parsed.output_file}", file=sys.stderr)
    return 0


def _rows(parsed: Any, data: Any, saved: Any) -> Any:
    from attentune.data.load import read_unlabelled
    from attentune.data.rows import TextRows

    is_pair = saved.is_pair
    if parsed.text is not None:
        if is_pair != (parsed.text_pair is not None):
            wanted = "pairs: add --text_pair" if is_pair else "single texts: leave out --text_pair"
            raise ConfigError(f"{parsed.run}: was trained on {wanted}.")
        pairs = None if parsed.text_pair is None else (parsed.text_pair,)
        return TextRows(("0",), (parsed.text,), pairs, None, "--text")
    if parsed.input_file is not None:
        data = saved.with_columns(data)
        return read_unlabelled(parsed.input_file, label_space=saved.label_space, is_pair=is_pair, config=data)
    found = saved.data(data, (parsed.split,))
    return next(iter(found.splits.values()))
