"""transformers' Auto classes know the model, whichever of the two packages is imported first, and how much of it."""

import subprocess
import sys

import pytest

ATTENTUNE_FIRST = """
import attentune
assert not {"torch", "transformers"} & set(sys.modules)
from transformers import AutoConfig, AutoModelForSequenceClassification
"""
TRANSFORMERS_FIRST = """
from transformers import AutoConfig, AutoModelForSequenceClassification
import attentune
"""
OURS_FIRST = """
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import load_model
"""
REGISTERED = """
import inspect
from transformers import AutoConfig, AutoModelForSequenceClassification
from attentune import AttentuneForSequenceClassification
from attentune.models.configuration import AttentuneConfig
from attentune.models import register_with_transformers, ImportHook
for _ in range(2):
    assert type(AutoConfig.for_model("attentune")) is AttentuneConfig
    known = AutoModelForSequenceClassification._model_mapping
    assert known[AttentuneConfig] is AttentuneForSequenceClassification
    assert list(known.keys()).count(AttentuneConfig) == 1
    waiting = [finder for finder in sys.meta_path if isinstance(finder, ImportHook)]
    assert len(waiting) == ("transformers.pipelines" not in sys.modules)
    register_with_transformers()
from transformers.pipelines import PIPELINE_REGISTRY
from attentune.models import pipeline_registry
for _ in range(2):
    assert PIPELINE_REGISTRY.supported_tasks["text-classification"]["impl"] is pipeline_registry.RegisteredPipeline
    assert pipeline_registry.resolve_class(pipeline_registry.PREVIOUS).__module__.startswith("transformers.")
    assert not [finder for finder in sys.meta_path if isinstance(finder, ImportHook)]
    register_with_transformers()
# As if nobody had watched.
module = sys.modules["transformers.models.auto.modeling_auto"]
assert type(module.__loader__).__name__ == type(module.__spec__.loader).__name__ == "SourceFileLoader"
assert "class AutoModelForSequenceClassification" in inspect.getsource(module)
"""
WITHOUT = """
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "transformers":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nothing())
import attentune
attentune.load_config(preset="bert")
try:
    import transformers
except ModuleNotFoundError as error:
    assert error.name == "transformers"
else:
    raise AssertionError
"""
BROKEN = """
import warnings
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name == "attentune.models.slots":
            raise ImportError("no slots today")
sys.meta_path.insert(0, Nothing())
import attentune
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    from transformers import AutoModelForSequenceClassification
said = [str(warning.message) for warning in found if warning.category is RuntimeWarning]
assert len(said) == 1, said
assert "could not register its model with transformers (ImportError: no slots today)" in said[0]
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(ATTENTUNE_FIRST, id="attentune"),
        pytest.param(TRANSFORMERS_FIRST, id="transformers"),
        pytest.param(OURS_FIRST, id="ours", marks=pytest.mark.slow),
    ],
)
def test_the_model_is_registered_once_whatever_is_imported_first(code: str) -> None:
    run(code + REGISTERED)


def test_without_transformers_the_import_works_and_says_nothing() -> None:
    run(WITHOUT)


@pytest.mark.slow
def test_what_goes_wrong_here_does_not_break_the_import_of_transformers() -> None:
    run(BROKEN)
