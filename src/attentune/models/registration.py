"""Registers our classes with transformers lazily, without importing transformers (and torch) with `import attentune`.

`AutoConfig`, `AutoModelForSequenceClassification` and `pipeline` only load registered classes. Our modules
`configuration`, `modeling` and `pipeline_registry` register theirs on import. An import hook imports each of them as
soon as the part of transformers that it registers with is loaded; transformers itself has no entry points for this.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
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
        if module is not None and not _is_being_imported(module):
            _import_follower(name)
    waiting = any(isinstance(finder, ImportHook) for finder in sys.meta_path)
    if not waiting and any(name not in sys.modules for name in _FOLLOWERS):
        sys.meta_path.insert(0, ImportHook())


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


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


class NotifyingFinder(MetaPathFinder, ABC):
    """Finds watched modules by the other finders, and is told when one of them is loaded."""

    @abstractmethod
    def watches(self, name: str) -> bool:
        """Whether this module is to be reported."""

    @abstractmethod
    def loaded(self, name: str) -> None:
        """React to a watched module, which is now loaded; called by the loader."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not self.watches(fullname):
            return None
        for finder in list(sys.meta_path):
            if isinstance(finder, type(self)) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _NotifyingLoader(spec.loader, self)
                return spec
        return None


class ImportHook(NotifyingFinder):
    """Imports what registers with a module of transformers as soon as it is loaded."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()

    def watches(self, name: str) -> bool:
        return name in _FOLLOWERS and name not in self._loaded

    def loaded(self, name: str) -> None:
        self._loaded.add(name)
        if all(watched in sys.modules for watched in _FOLLOWERS) and self in sys.meta_path:
            sys.meta_path.remove(self)
        _import_follower(name)


class _NotifyingLoader(Loader):
    """Delegates to another loader and then notifies the finder."""

    def __init__(self, loader: Any, finder: NotifyingFinder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.loaded(module.__name__)
