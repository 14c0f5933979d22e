"""Making the model known to transformers, without importing transformers where nobody else does.

`AutoConfig` and `AutoModelForSequenceClassification` must know a class before they can load it, and `pipeline` one
that obeys a run's thresholds. `models/configuration.py`, `models/modeling.py` and `models/pipeline_registry.py`
register theirs when they are imported; here it is seen to that they are imported as soon as there is something to
register with.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Of transformers, once it is imported, and what of ours is imported then.
_FOLLOWERS = {
    "transformers.models.auto.configuration_auto": "attentune.models.configuration",
    "transformers.models.auto.modeling_auto": "attentune.models.modeling",
    "transformers.pipelines": "attentune.models.pipeline_registry",
}


def register_with_transformers() -> None:
    """Register now what transformers has loaded already, and the rest once it loads it. Twice is as good as once."""
    for name in _FOLLOWERS:
        module = sys.modules.get(name)
        if module is not None and not _is_being_imported(module):
            _follow(name)
    waiting = any(isinstance(finder, _Watch) for finder in sys.meta_path)
    if not waiting and any(name not in sys.modules for name in _FOLLOWERS):
        sys.meta_path.insert(0, _Watch())


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _follow(name: str) -> None:
    try:
        importlib.import_module(_FOLLOWERS[name])
    except Exception as error:  # the import that someone else asked for must not fail with ours
        warnings.warn(
            f"attentune could not register its model with transformers ({type(error).__name__}: {error}), so"
            " AutoModelForSequenceClassification cannot load run folders; attentune.Predictor.load may say more.",
            RuntimeWarning,
            stacklevel=2,
        )


class _Watch(MetaPathFinder):
    """Finds nothing itself; of the modules that are waited for, it has the loader of others tell when it is done."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname not in _FOLLOWERS or fullname in self._seen:
            return None
        for finder in list(sys.meta_path):
            if isinstance(finder, _Watch) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Telling(spec.loader, self)
                return spec
        return None

    def loaded(self, name: str) -> None:
        """Called once the module of this name stands."""
        self._seen.add(name)
        if all(watched in sys.modules for watched in _FOLLOWERS) and self in sys.meta_path:
            sys.meta_path.remove(self)
        _follow(name)


class _Telling(Loader):
    """Loads as another loader does, leaves the module as that one would, and tells a watch."""

    def __init__(self, loader: Any, watch: _Watch) -> None:
        self._loader, self._watch = loader, watch

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watch.loaded(module.__name__)
