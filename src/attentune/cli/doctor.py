"""`attentune doctor`: check a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import Parser, add_config_flags, add_train_file, config_from

_EXAMPLES = """examples:
  attentune doctor --task rte --data_dir glue_data
  attentune doctor --train_file train.csv --validation_file dev.csv --text_column text --label_column label"""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune doctor",
        usage="attentune doctor [flags]",
        description="Check a dataset for problems before training: leaks, contradictions, imbalance, truncation, size.",
        epilog=_EXAMPLES,
    )
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    made.add_argument("--seed", dest="training.seed", help="the seed of the splits and samples (default: 42)")
    add_train_file(made)
    add_config_flags(made, sections=("data", "model"))
    return made


def run(arguments: Sequence[str]) -> int:
    """Check the dataset; return the exit status."""
    parsed, problems = parser().parse(arguments)
    config = config_from(parsed, problems)

    from attentune.data.checks.doctor import examine, full_lines
    from attentune.models.build import is_english_only
    from attentune.results import to_json

    data, lengths = rows_and_lengths(config)
    report = examine(
        data, token_lengths=lengths, max_length=config.data.longest_row, english_only=is_english_only(config.model)
    )
    if parsed.format == "json":
        print(to_json({"notes": list(data.notes), **report.to_dict()}), end="")
    else:
        print("\n".join([*data.notes, "", *full_lines(report)] if data.notes else full_lines(report)))
    return 0


def rows_and_lengths(config: Any) -> tuple[Any, dict[str, Any]]:
    """Load the rows, and count the tokens of each row by split, before truncation and with special tokens."""
    from attentune.data.load import load_data
    from attentune.data.tokenization import encode_rows
    from attentune.models.build import load_tokenizer

    data = load_data(config.data, seed=config.training.seed)
    tokenizer, limit = load_tokenizer(config.model), config.data.longest_row
    bi_encoder = config.model.pair_encoding == "bi-encoder"
    return data, {
        name: encode_rows(rows, tokenizer, max_length=limit, bi_encoder=bi_encoder).full_lengths
        for name, rows in data.splits.items()
    }
