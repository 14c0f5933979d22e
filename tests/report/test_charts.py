"""Charts: the drawn values, the layout, and imports without torch and Matplotlib."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.errors import ConfigError, StorageError
from attentune.explain.texts import head_attention
from attentune.report import charts
from attentune.report.charts import (
    Bar,
    PointRow,
    bars_figure,
    check_figure_file,
    figure_bytes,
    heads_figure,
    rows_figure,
    save_figure,
)
from helpers.made_records import SIGNATURES
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, rows_for, tiny_run

GROUPS = ("lexical overlap", "subsequence", "constituent")


def panels(methods: int, *, error: float | None = 0.05, name: str = "method") -> dict[str, dict[str, list[Bar]]]:
    return {
        f"gold label: {label}": {
            f"{name} {method}": [Bar((3 * method + 2 * group + place) % 10 / 10 + 0.05, error) for group in range(3)]
            for method in range(methods)
        }
        for place, label in enumerate(("entailment", "non-entailment"))
    }


@pytest.mark.parametrize("ending", SIGNATURES)
def test_each_kind_of_file_is_drawn(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"bars{ending}"
    save_figure(bars_figure(panels(2), GROUPS, chance=0.5), file)
    assert file.read_bytes().startswith(SIGNATURES[ending])
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_bars_are_the_numbers_and_errors() -> None:
    given = panels(3)
    figure = bars_figure(given, GROUPS, chance=0.5, title="HANS, 300 rows")
    assert [axis.get_title() for axis in figure.axes] == list(given)
    for axis, bars in zip(figure.axes, given.values(), strict=True):
        heights = [patch.get_height() for patch in axis.patches]
        assert heights == pytest.approx([bar.value for own in bars.values() for bar in own])
        assert [label.get_text() for label in axis.get_xticklabels()] == list(GROUPS)
        assert len([line for line in axis.get_lines() if list(line.get_ydata()) == [0.5, 0.5]]) == 1
        ends = [tuple(segment[:, 1]) for part in axis.collections for segment in part.get_segments()]
        assert ends == [pytest.approx((bar.value - 0.05, bar.value + 0.05)) for own in bars.values() for bar in own]
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["method 0", "method 1", "method 2", "chance (0.5)"]


def test_names_are_shown_as_they_are() -> None:
    names = ["_a", "$x^$", "$\\frac$ b", "a_b"]
    figure = bars_figure({"gold label: entailment": {name: [Bar(0.5)] * 3 for name in names}}, GROUPS)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names


def test_high_errors_fit_and_cells_without_rows_are_left_empty() -> None:
    bars = {"gold label: entailment": {"bert": [Bar(1.0, 0.3), Bar(float("nan")), Bar(0.0, None)]}}
    figure = bars_figure(bars, GROUPS)
    assert figure.axes[0].get_ylim() == pytest.approx((0, 1.32))
    assert len(figure.legends[0].get_texts()) == 1


def test_small_differences_do_not_fill_the_chart_and_nan_is_left_out() -> None:
    rows = [PointRow("a", (0.1,), 0.1), PointRow("b", (-0.2, 0.0), -0.1, -0.2, 0.1)]
    (axis,) = rows_figure({"": rows}, x_label="points", level=("none", 0.0), least=4.0).axes
    left, right = axis.get_xlim()
    assert right - left == pytest.approx(4.0)
    intervals = [segment[:, 0].tolist() for part in axis.collections for segment in part.get_segments()]
    assert intervals == [[-0.2, pytest.approx(0.1)]]


def test_invalid_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"a\.gif: expected a name for a figure that ends in \.png, \.svg, \.pdf"):
        check_figure_file("a.gif")
    with pytest.raises(StorageError, match=r"nix/a\.png: could not be written: its folder does not exist"):
        save_figure(bars_figure(panels(1), GROUPS), tmp_path / "nix" / "a.png")
    monkeypatch.setattr(charts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Matplotlib, .*: pip install .*\[explain\]"):
        check_figure_file(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []


def test_importing_it_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, attentune.report.contents;"
        "print([name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# The figure of attention heads, with its numbers and names; too long texts are refused.


Tiny = Callable[..., Path]


def test_heads_are_columns_and_ssa_stands_beside_them(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair", 1)
    (table,) = head_attention(run, rows, heads=(3, 1))
    figure = heads_figure([table])
    assert figure_bytes(figure, "svg").startswith(b"<?xml")
    heads, ssa = figure.subfigs[0].axes
    assert heads.collections[0].get_array().tolist() == [list(own) for own in table.attention]
    assert ssa.collections[0].get_array()[:, 0].tolist() == list(table.importance)
    assert [label.get_text() for label in heads.get_xticklabels()] == ["3", "1"]
    assert [label.get_text() for label in ssa.get_xticklabels()] == ["SSA"]
    assert [label.get_text() for label in heads.get_yticklabels()] == [token.text for token in table.tokens]
    assert heads.get_xlabel() == "heads of layer 3"
    second = next(number for number, token in enumerate(table.tokens) if token.within == "pair")
    assert [list(line.get_ydata()) for line in heads.lines] == [[second - 0.5] * 2]
    high = [f"{share:.2f}".lstrip("0") for own in table.attention for share in own if share >= 0.1]
    assert [text.get_text() for text in heads.texts] == high


def test_without_a_token_gate_the_heads_stand_alone(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny(), "regression", gate=False), rows_of([TEXTS[0], "", "Yes"])
    assert [len(part.axes) for part in heads_figure(head_attention(run, rows)).subfigs] == [1, 1, 1]


def test_hostile_texts_are_drawn_as_they_are_and_long_ones_refused(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    figure = heads_figure(head_attention(run, rows_of(["$$ x^ \\frac \x1b[2J <b>"])))
    labels = figure.subfigs[0].axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["$$", "x", "^", "\\", "frac", "[", "2J", "<", "b", ">"]
    assert not any(label.get_parse_math() for label in labels)
    with pytest.raises(ConfigError, match=r"got 400 tokens, expected at most 300"):
        heads_figure(head_attention(run, rows_of(["the film was great " * 5] * 20)))
