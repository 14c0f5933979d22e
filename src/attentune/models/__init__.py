"""The model class for Hugging Face transformers, its four slots, building, saving and loading.

Start with `modeling.AttentuneForSequenceClassification`, then `build.build_model`.

`AutoConfig`, `AutoModelForSequenceClassification` and `pipeline` only load registered classes. Modules of ours register
theirs on import; since `import attentune` must not import transformers (and torch), which has no entry points for this,
an import hook imports each of them as soon as the part of transformers that it registers with is loaded.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

# From a module of transformers to the module of ours to import once it is loaded.
_FOLLOWERS = {
    "transformers.models.auto.configuration_auto": "attentune.models.configuration",
    "transformers.models.auto.modeling_auto": "attentune.models.modeling",
    "transformers.pipelines": "attentune.models.pipeline_registry",
}


def register_with_transformers() -> None:
    """Register with the modules of transformers that are loaded, and with the others once they are. Idempotent."""
    for name in _FOLLOWERS:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _import_follower(name)
    waiting = any(isinstance(finder, ImportHook) for finder in sys.meta_path)
    if not waiting and any(name not in sys.modules for name in _FOLLOWERS):
        sys.meta_path.insert(0, ImportHook())


def _import_follower(name: str) -> None:
    try:
        importlib.import_module(_FOLLOWERS[name])
    except Exception as error:  # the user's import of transformers must not fail with ours
        warnings.warn(
            f"attentune could not register its model with transformers ({type(error).__name__}: {error}), so"
            " AutoModelForSequenceClassification cannot load run folders; attentune.Predictor.load may say more.",
            RuntimeWarning,
            stacklevel=2,
        )


class ImportHook(MetaPathFinder):
    """Finds the modules of `_FOLLOWERS` by the other finders, and imports ours once they are loaded."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in _FOLLOWERS or fullname in self._loaded:
            return None
        others = (one for one in sys.meta_path if not isinstance(one, ImportHook) and hasattr(one, "find_spec"))
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(self._execute, loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        self._loaded.add(module.__name__)
        if all(name in sys.modules for name in _FOLLOWERS) and self in sys.meta_path:
            sys.meta_path.remove(self)
        _import_follower(module.__name__)
