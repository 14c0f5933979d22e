"""Further evaluations of a recipe's trained models: HANS, AX, layer weights and explanations of sentences."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attentune.cli.evaluate import hans_figure
from attentune.config import DataConfig
from attentune.data.builtin import find_builtin_file, load_spec
from attentune.data.dataset import LabelSpace, TextRows
from attentune.errors import ConfigError, DataError
from attentune.explain.explainer import answer_masked
from attentune.explain.explanation import Subword, word_spans
from attentune.inference.predictor import Predictor, evaluate_in_detail
from attentune.io.files import storage_errors, write_text
from attentune.models.build import build_model, load_tokenizer
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.nn.classifiers import DotProduct, ScaledDotProduct
from attentune.nn.heads import Attention
from attentune.report.document import Figure, Section, Table, slug
from attentune.results import to_json
from attentune.runs.grid import methods_from, plan_grid
from attentune.runs.records import Run
from attentune.suites.glue import PhenomenonScore, score_rows
from attentune.suites.hans import score_hans
from attentune_lab.commands.layers import layer_weights, layers_figure
from attentune_lab.reproduction.heads import HeadAttention, head_attention, heads_figure
from attentune_lab.reproduction.recipe import Recipe, Sentence, with_task_settings

_HANS_ROWS, _FEWEST_ROWS = 30_000, 300


def score_on_hans(runs: Mapping[Run, Path], folder: Path, *, data_dir: str | None, fraction: float) -> Section:
    """Score runs on HANS, write the result and return its section; runs of the same method are averaged."""
    rows = None if fraction >= 1 else max(_FEWEST_ROWS, math.ceil(fraction * _HANS_ROWS))
    report = score_hans(list(runs.values()), data_dir=data_dir, methods=[run.method for run in runs], max_samples=rows)
    _write(folder / "hans.json", to_json(report.to_dict()))
    draw = functools.partial(hans_figure, report)
    caption = "Accuracy by heuristic and gold label; the line is chance."
    return Section("HANS", (Figure("hans", "Accuracy on HANS", caption, draw),))


def score_on_ax(
    runs: Mapping[Run, Path], data_dir: str | None
) -> tuple[list[Section], list[str], dict[str, list[float]]]:
    """Score the runs trained on MNLI on AX, GLUE's diagnostic set, by phenomenon."""
    trained = {run: place for run, place in runs.items() if run.task == "mnli"}
    try:
        find_builtin_file("ax", "validation", data_dir)
    except (ConfigError, DataError) as error:
        return [], [f"AX is not scored: {error}"], {}
    if not trained:
        return [], ["AX is not scored: it needs runs trained on MNLI."], {}
    by_method: dict[str, list[tuple[PhenomenonScore, ...]]] = {}
    for run, place in trained.items():
        config = DataConfig(task="ax", data_dir=data_dir)
        found, data = evaluate_in_detail(place, config, splits=("validation",))
        scores = score_rows(data.splits["validation"], found["validation"].predictions)
        by_method.setdefault(run.method, []).append(scores)
    first = next(iter(by_method.values()))[0]
    means = {
        method: np.mean([[one.score for one in scores] for scores in found], axis=0)
        for method, found in by_method.items()
    }
    lines = [
        (
            one.category or "all",
            one.phenomenon or "all",
            f"{one.rows:,}",
            *(f"{100 * m[place]:.1f}" for m in means.values()),
        )
        for place, one in enumerate(first)
    ]
    header = ("category", "phenomenon", "rows", *by_method)
    notes = ("Matthews correlation, in points; means over seeds. A row may have several phenomena.",)
    table = Table("ax", "AX by phenomenon", header, tuple(lines), 2, notes)
    overall = next(place for place, one in enumerate(first) if not one.category and not one.phenomenon)
    ax_scores = {method: [scores[overall].score for scores in found] for method, found in by_method.items()}
    return [Section("AX, GLUE's diagnostic set", (table,))], [], ax_scores


def measure_layers(runs: Mapping[Run, Path], folder: Path) -> Section:
    """Measure the layer weights of each method's lowest-seed run on its validation rows; write and draw them."""
    figures = []
    for run, place in _first(runs).items():
        saved = Predictor.load(place)
        summaries = layer_weights(saved, saved.data(None, ("validation",)))
        _write(folder / run.method / "layers.json", to_json(summaries))
        caption = "The weight by which squeeze-and-excitation multiplies the output of each encoder layer."
        draw = functools.partial(layers_figure, summaries)
        figures.append(Figure(slug("layers", run.method), f"Layer weights: {run.method}", caption, draw))
    return Section("Layer weights", tuple(figures))


def explain_sentences(sentences: Sequence[Sentence], runs: Mapping[Run, Path]) -> Section:
    """Return a section with the predictions, attention heads and SSA scores of each method's lowest-seed run."""
    lines: list[tuple[str, ...]] = []
    figures: list[Figure] = []
    for number, sentence in enumerate(sentences, start=1):
        rows = TextRows(("0",), (sentence.text,), None, None, "the recipe")
        for run, place in _first(runs).items():
            saved = Predictor.load(place)
            heads = head_attention(saved, rows)
            lines += _lines(sentence, run.method, saved, rows, heads)
            figures.append(_heads(f"sentence-{number}-{len(figures) + 1}", run.method, heads))
    header = ("sentence", "method", "true class", "predicted", "probability of the true class", "highest SSA scores")
    notes = ("Each method's run with the first seed.",)
    return Section("Sentences", (Table("sentences", "Predictions", header, tuple(lines), 4, notes), *figures))


def _lines(
    sentence: Sentence, method: str, saved: Predictor, rows: TextRows, heads: HeadAttention
) -> list[tuple[str, ...]]:
    prediction, _, _ = answer_masked(saved, rows, [])
    share = f"{prediction['probabilities'][sentence.gold]:.3f}"
    lines: list[tuple[str, ...]] = [
        (sentence.text, method, sentence.gold, str(prediction["prediction"]), share, _important(heads))
    ]
    if sentence.masked is not None:
        spans = [span for span in word_spans(sentence.text) if sentence.text[slice(*span)] == sentence.masked]
        _, masked, _ = answer_masked(saved, rows, [Subword(sentence.masked, *spans[0], 0.0)])
        share = f"{masked['probabilities'][sentence.gold]:.3f}"
        title = f'the same, "{sentence.masked}" masked'
        lines.append((title, method, sentence.gold, str(masked["prediction"]), share, "-"))
    return lines


def _important(heads: HeadAttention) -> str:
    """Return the words with the four highest SSA scores, in descending order; "-" without a token gate."""
    if heads.importance_W is None:
        return "-"
    order = sorted(zip(heads.importance_W, heads.words, strict=True), key=lambda pair: -pair[0])
    return ", ".join(f"{word} {score:.2f}" for score, word in order[:4])


def _heads(name: str, method: str, heads: HeadAttention) -> Figure:
    return Figure(
        f"heads-{name}",
        f'{method}: "{heads.text}"',
        "Attention of the first token in the last layer, one column per head; the SSA scores if there is a token gate.",
        functools.partial(heads_figure, heads),
    )


def _first(runs: Mapping[Run, Path]) -> dict[Run, Path]:
    """Return the run with the lowest seed of each method, with its folder."""
    first_runs: dict[str, Run] = {}
    for run in runs:
        if run.method not in first_runs or run.seed < first_runs[run.method].seed:
            first_runs[run.method] = run
    return {run: runs[run] for run in first_runs.values()}


def _write(file: Path, text: str) -> None:
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)


def count_parts(recipe: Recipe, encoder: str, overrides: Mapping[str, Any] | None = None) -> dict[str, dict[str, int]]:
    """Count the weights of untrained models' attention and projection matrices, or else of the classifier."""
    methods = with_task_settings(recipe.methods, recipe.task_settings)
    grid = plan_grid(
        tasks=recipe.tasks,
        methods=list(methods_from(methods, recipe.name).values()),
        seeds=(1,),
        overrides={"model.name_or_path": encoder, **recipe.settings, **(overrides or {})},
    )
    return {
        method: {task: _count(grid, Run(task, None, method, 1)) for task in recipe.tasks} for method in recipe.methods
    }


def _count(grid: Any, run: Run) -> int:
    config, spec = grid.config(run, Path("unused")), load_spec(run.task)
    space = LabelSpace(spec.task_type, spec.label_names)
    is_pair = any(split.pair is not None for split in spec.splits.values())
    model = build_model(
        config.model, space, load_tokenizer(config.model), max_length=config.data.max_length, is_pair=is_pair, seed=0
    )
    # The poster counts 3840 for the baseline on SST-5: 768 x 5, without the biases.
    return _matrices(model) or sum(weight.numel() for weight in model.classifier.parameters() if weight.dim() == 2)


def _matrices(model: AttentuneForSequenceClassification) -> int:
    """Count the weights of the head's attention matrices and of the projection before a dot product, without biases.

    Four matrices per block of self-attention, five per block of cross-attention. The fifth of a bare block is the dense
    layer that the poster's program creates and never applies; it does not exist here.
    """
    linears = []
    for block in getattr(model.head, "blocks", ()):
        is_bare = isinstance(block, Attention)
        attention = block if is_bare else block.attention
        linears += [attention.query, attention.key, attention.value, attention.output]
        fifth = attention.output if is_bare else block.dense
        linears += [] if fifth is None else [fifth]
    if isinstance(model.classifier, (DotProduct, ScaledDotProduct)):
        linears.append(model.classifier.projection)
    return sum(linear.weight.numel() for linear in linears)
