"""`attentune layers`: show the layer weights of squeeze-and-excitation."""

import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import PRECISION, ROW_SETTINGS, Parser, add_config_flags, data_from
from attentune.cli.inputs import check_named
from attentune.errors import ConfigError

SUMMARY = "show the layer weights of a run with squeeze-and-excitation"
_EXAMPLES = """examples:
  attentune layers runs/weighted                                 (on the validation rows of its training)
  attentune layers runs/weighted --split train --format json
  attentune layers runs/weighted --figure_file layers.png"""


def parser() -> Parser:
    made = Parser(
        prog="attentune layers",
        usage="attentune layers RUN [flags]",
        description="Show the layer weights of a run with squeeze-and-excitation, over a dataset.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--split", default="validation", help="split: validation, test or train (default: validation)")
    made.add_lines(PRECISION)
    made.add_argument("--figure_file", help="also draw the weights to this file, such as layers.png")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    data_config = data_from(parsed, problems)
    check_named(parsed)

    from attentune.cli.output import number, table
    from attentune.inference.predictor import Predictor
    from attentune.results import to_json

    if parsed.figure_file is not None:
        from attentune.report.charts import check_figure_file

        check_figure_file(parsed.figure_file)
    saved = Predictor.load(parsed.run)
    data = saved.data(data_config, (parsed.split,))
    summaries = layer_weights(saved, data, precision=parsed.precision)
    if parsed.figure_file is not None:
        from attentune.report.charts import save_figure

        save_figure(layers_figure(summaries), parsed.figure_file)
        print(f"drawn into {parsed.figure_file}", file=sys.stderr)
    if parsed.format == "json":
        print(to_json(summaries), end="")
        return 0
    rows = [
        (split, str(line["layer"]), number(line["mean"]), number(line["std"]), *(number(q) for q in line["quartiles"]))
        for split, lines in summaries.items()
        for line in lines
    ]
    header = ("split", "layer", "mean", "std", "25 %", "median", "75 %")
    print(table(header, rows, right=range(1, 7)))
    return 0


def layer_weights(run: Any, data: Any, *, precision: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Summarise the excitation, from 0 to 1, of each layer that reaches the output over the texts of each split.

    Source: figure 4 of SESAME (Su and Cheng 2019).
    """
    from attentune.inference.scoring import score_rows

    saved = run.single_model("layers")
    if not saved.model.config.layer_mix["squeeze"]:
        raise ConfigError(
            f"{saved.folder}: was trained without squeeze-and-excitation, so its layers have no weights; train with a"
            " preset such as sesame-weighted, or with --set model.layer_mix.squeeze=true."
        )
    layers = reached_layers(saved.model.layer_mix)
    if len(layers) < 2:
        raise ConfigError(
            f"{saved.folder}: was trained with model.layer_mix.kind {saved.model.config.layer_mix['kind']}, which uses"
            f" layer {layers[0] if layers else 'none'} alone: the weights of all other layers have had no gradient and"
            " are those of the start. Train with a preset such as sesame-weighted, or with --set"
            " model.layer_mix.kind=weighted (or sum-all, mean-all, sum-last-4)."
        )
    evaluator = saved.evaluator(data, precision=precision)
    summaries = {}
    for split, features in evaluator.features.items():
        weights_NL = score_rows(
            evaluator.model,
            features,
            pad_token_id=evaluator.pad_token_id,
            batch_size=evaluator.batch_size,
            accelerator=evaluator.accelerator,
            with_details=True,
        ).layer_weights_NL
        assert weights_NL is not None
        summaries[split] = [_summary(layer, weights_NL[:, layer - 1]) for layer in layers]
    return summaries


def reached_layers(mix: Any) -> tuple[int, ...]:
    """Return the numbers, from 1, of the layers whose excitation reaches the output of a layer mix and hence trains.

    Found by the gradients of the excitation on random layers, which holds for combinations of other packages too.
    """
    import torch

    count, generator = mix.excitation.excite.out_features, torch.Generator().manual_seed(0)
    parameter = next(mix.parameters())
    layers = [torch.randn(1, 2, mix.hidden_size, generator=generator).to(parameter) for _ in range(count)]
    weights_BL = torch.full((1, count), 0.5, device=parameter.device, requires_grad=True)
    mixed_BTD = mix.rescaled(layers, torch.ones(1, 2, dtype=torch.bool, device=parameter.device), weights_BL)
    (gradient_BL,) = torch.autograd.grad(mixed_BTD.float().square().sum(), weights_BL, allow_unused=True)
    values = [] if gradient_BL is None else gradient_BL[0].tolist()
    return tuple(number for number, value in enumerate(values, start=1) if value != 0.0)


def _summary(layer: int, weights_N: Any) -> dict[str, Any]:
    import numpy as np

    quartiles = [float(weight) for weight in np.quantile(weights_N, (0.25, 0.5, 0.75))]
    return {"layer": layer, "mean": float(weights_N.mean()), "std": float(weights_N.std()), "quartiles": quartiles}


def layers_figure(summaries: dict[str, list[dict[str, Any]]]) -> Any:
    from attentune.report.charts import PointRow, rows_figure

    panels = {
        split: [
            PointRow(f"layer {line['layer']}", (), line["mean"], line["mean"] - line["std"], line["mean"] + line["std"])
            for line in lines
        ]
        for split, lines in summaries.items()
    }
    return rows_figure(
        panels,
        x_label="weight (squeeze-and-excitation)",
        least=0.1,
        mean_name="mean over texts, standard deviation",
    )
