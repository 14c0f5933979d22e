"""Whatever stands in settings and records: they are read right, or an error of ours says why not."""

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentune.config import Config, load_config, load_preset, preset_names, to_flat
from attentune.config.load import read_yaml
from attentune.errors import CheckpointError, ConfigError
from attentune.report.writing import escape_csv, html_templates
from attentune.results import RunResult
from attentune.runs.records import RunRecord
from attentune.training.callbacks import TrainingState
from attentune.training.checkpoint import verify_checkpoint
from helpers.bad_files import texts

numbers = st.one_of(st.integers(), st.floats(), st.booleans(), st.none())
values = st.recursive(
    st.one_of(numbers, st.text(max_size=12)),
    lambda part: st.one_of(st.lists(part, max_size=3), st.dictionaries(st.text(max_size=8), part, max_size=3)),
    max_leaves=8,
)
FLAT = to_flat(Config())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


def outcome(read: Callable[[Path], Any], file: Path, kind: type[Exception]) -> tuple[Any, str]:
    """What is read, or None and the message."""
    try:
        return read(file), ""
    except kind as error:
        return None, str(error)


@given(text=st.one_of(st.text(max_size=80), st.text("-[]{}:,&*!|>'\"#%@ \nab01?", max_size=60)))
def test_any_text_is_yaml_or_an_error_of_ours(place: Path, text: str) -> None:
    file = place / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    found, told = outcome(read_yaml, file, ConfigError)
    assert isinstance(found, dict) or told.startswith(f"{file}:")
    assert "\n" not in told


@given(preset=st.sampled_from(preset_names()), seed=st.integers(0, 2**31), rate=st.floats(1e-7, 1.0))
def test_a_preset_gives_way_to_what_is_said_and_to_nothing_else(preset: str, seed: int, rate: float) -> None:
    plain = to_flat(load_config(preset=preset))
    said = {"training.seed": seed, "training.learning_rate": rate}
    assert to_flat(load_config(overrides=said, preset=preset)) == plain | said
    own = {key: value for key, value in load_preset(preset).items() if key not in ("description", "source")}
    assert {name.split(".")[0] for name, value in plain.items() if value != FLAT[name]} <= {*own, "preset"}


@given(content=st.one_of(values, st.dictionaries(st.sampled_from(sorted(RunRecord.__dataclass_fields__)), values)))
def test_any_json_is_a_record_or_an_error_of_ours(place: Path, content: Any) -> None:
    file = place / "record.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    for load in (RunRecord.load, RunResult.load):
        found, told = outcome(load, file, CheckpointError)
        assert found is not None or told.startswith(f"{file}: ")


@given(changes=st.dictionaries(st.sampled_from([*TrainingState().to_dict(), "evil"]), values, max_size=3))
def test_any_state_is_one_or_is_refused(changes: dict[str, Any]) -> None:
    try:
        state = TrainingState.from_dict(TrainingState().to_dict() | changes)
    except (ValueError, TypeError):
        return
    assert min(state.step, state.epoch, state.log_bytes) >= 0


@given(content=values)
def test_any_manifest_is_right_or_says_what_is_wrong(place: Path, content: Any) -> None:
    (place / "manifest.json").write_text(json.dumps(content), encoding="utf-8")
    assert isinstance(verify_checkpoint(place), str)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append("comment")

    def handle_decl(self, decl: str) -> None:
        self.tags.append("declaration")


@given(text=st.one_of(texts, st.text("<>&\"'/!-=script;:#x0 \n", max_size=40)))
def test_no_text_is_markup_of_a_page_or_a_formula_of_a_table(text: str) -> None:
    parser = _Tags()
    parser.feed(html_templates.from_string('<p title="{{ text }}">{{ text }}</p>').render(text=text))
    parser.close()
    assert parser.tags == ["p"]
    shown = escape_csv(text)
    assert not shown.startswith(("=", "@"))
