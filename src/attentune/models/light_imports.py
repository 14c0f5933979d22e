"""Imports transformers without what a text encoder does not use when it predicts in one process.

More than half of the seconds before a first prediction would go into such modules: PyTorch's compiler, models sharded
over processes, losses for images, templates for chats, and a list of the names in all model files. `import_lightly`
leaves them out, in ways in which they are still found where something does use them:

- Optional libraries: transformers asks a function of each whether it is available, and does without it otherwise. Here
  they say no.
- PyTorch's compiler and symbolic algebra, of which a few functions are needed: the modules are there, and are executed
  when something else of them is used.
- The names in the model files: those of `transformers.models.auto` are listed, the others when one is asked for.

What transformers calls these things differs between its versions; what is not found is imported as usual.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from attentune.models.registration import NotifyingFinder

_IMPORT_UTILS = "transformers.utils.import_utils"
# The functions with which transformers asks for optional libraries that no text encoder needs.
_NOT_NEEDED = (
    "is_jinja_available",
    "is_scipy_available",
    "is_torch_distributed_available",
    "is_torchvision_available",
    "is_vision_available",
)
# Variables of the environment in processes of torchrun and of Accelerate's launcher.
_SEVERAL_PROCESSES = ("LOCAL_RANK", "WORLD_SIZE")


def import_lightly() -> None:
    """Make this process import transformers lightly, unless it is imported, or this is one of several processes.

    For programs that only predict. Call it before anything imports transformers.
    """
    if "transformers" in sys.modules or any(name in os.environ for name in _SEVERAL_PROCESSES):
        return
    if not any(isinstance(finder, _ImportUtilsFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ImportUtilsFinder())
    _defer_modules()


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Put Python's garbage collection off while modules and a model are loaded, which are all kept."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _ImportUtilsFinder(NotifyingFinder):
    """Changes the functions of transformers that decide what is imported, once their module is loaded."""

    def watches(self, name: str) -> bool:
        return name == _IMPORT_UTILS

    def loaded(self, name: str) -> None:
        sys.meta_path.remove(self)
        utils: Any = sys.modules[name]
        for function in _NOT_NEEDED:
            if hasattr(utils, function):
                setattr(utils, function, lambda: False)
        if all(hasattr(utils, part) for part in ("_LazyModule", "define_import_structure", "spread_import_structure")):
            _list_names_late(utils)


def _list_names_late(utils: Any) -> None:
    """List the names in transformers' model files when they are asked for, those of the Auto classes at once."""
    in_full: Callable[..., dict] = utils.define_import_structure
    lazy_module: Any = utils._LazyModule

    class _Listing(dict):
        """The names in some folders of models, and what else transformers adds to them."""

        def __init__(self, path: Path, prefix: str | None, folders: Sequence[str]) -> None:
            found = {name: utils.create_import_structure_from_path(str(path / name)) for name in folders}
            start = "" if prefix is None else f"{prefix}."
            spread = utils.spread_import_structure(found)
            super().__init__({needs: {start + key: names for key, names in of.items()} for needs, of in spread.items()})
            self.path, self._prefix = path, prefix

        def with_folders(self, folders: Sequence[str]) -> dict:
            """Add the names in these folders; those of all folders if there are none."""
            more = _Listing(self.path, self._prefix, folders) if folders else in_full(str(self.path), self._prefix)
            return {needs: {**more.get(needs, {}), **self.get(needs, {})} for needs in {*more, *self}}

    class _PartialModule(lazy_module):
        """A package of transformers that completes its list of names when another one is asked for."""

        def __init__(self, name: str, file: str, structure: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(name, file, structure, *args, **kwargs)
            if isinstance(structure, _Listing):
                self._listing, self._options = structure, (args, kwargs)

        def __getattr__(self, name: str) -> Any:
            if "_listing" in self.__dict__ and not name.startswith("_") and not self._is_listed(name):
                if _is_submodule(self, name):
                    return importlib.import_module(f"{self.__name__}.{name}")
                folders = _folders_of(name, self._listing.path)
                if folders:
                    self._list(self._listing.with_folders(folders))
                if not folders or not self._is_listed(name):
                    self._list(self.__dict__.pop("_listing").with_folders(()))
            return super().__getattr__(name)

        def _is_listed(self, name: str) -> bool:
            return any(name in names for names in (self._objects, self._modules, self._class_to_module))

        def _list(self, structure: dict) -> None:
            args, kwargs = self._options
            lazy_module.__init__(self, self.__name__, self.__file__, structure, *args, **kwargs)

    def define_import_structure(module_path: Any, prefix: str | None = None) -> dict:
        path = Path(module_path)
        folder = path.parent if path.suffix == ".py" else path
        is_models = folder.name == "models" and (folder / "auto").is_dir()
        return _Listing(folder, prefix, ("auto",)) if is_models else in_full(module_path, prefix)

    utils.define_import_structure = define_import_structure
    utils._LazyModule = _PartialModule


def _is_submodule(package: ModuleType, name: str) -> bool:
    return any((Path(folder) / f"{name}.py").is_file() or (Path(folder) / name).is_dir() for folder in package.__path__)


def _folders_of(name: str, models: Path) -> list[str]:
    """Return the folders of models that a class of this name may be in: `bert` for "BertTokenizer"."""
    folders = (entry.name for entry in models.iterdir() if not entry.name.startswith("_"))
    return [folder for folder in folders if name.lower().startswith(folder.replace("_", ""))]


class _DeferredModule(ModuleType):
    """A module that is executed when something is asked for that is not one of its stand-ins."""

    def __init__(self, spec: ModuleSpec, marks: Sequence[str], stand_ins: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin
        self.__package__ = spec.parent
        self._marked: list[tuple[str, Any]] = []
        self._in_place = (*marks, *stand_ins)
        for mark in marks:
            setattr(self, mark, self._marker(mark))
        for name, function in stand_ins.items():
            setattr(self, name, partial(function, self))

    def _marker(self, mark: str) -> Callable[[Any], Any]:
        def remember(function: Any) -> Any:
            self._marked.append((mark, function))
            return function

        return remember

    def execute(self) -> None:
        """Execute the module in place."""
        marked = self._marked
        for name in (*self._in_place, "_marked", "_in_place"):
            del self.__dict__[name]
        self.__class__ = ModuleType  # type: ignore[assignment]
        assert self.__spec__ is not None
        assert self.__spec__.loader is not None
        if self.__spec__.submodule_search_locations is not None:
            self.__path__ = list(self.__spec__.submodule_search_locations)
        self.__spec__.loader.exec_module(self)
        for mark, function in marked:
            getattr(self, mark)(function)

    def __getattr__(self, name: str) -> Any:
        # A package's path is asked for when another submodule is imported, which may need all of the package.
        is_path = name == "__path__" and self.__spec__ is not None and self.__spec__.submodule_search_locations
        if name.startswith("__") and not is_path:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.execute()
        return getattr(self, name)


def _disable(module: ModuleType, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
    """As `torch._dynamo.disable` where nothing is compiled: return the function itself."""
    return fn if fn is not None else lambda function: function


def _on_plain(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Make a stand-in for a function of symbolic shapes: what it computes where no argument is a symbol."""

    def function(module: ModuleType, *args: Any) -> Any:
        if all(_is_plain(arg) for arg in args):
            return compute(*args)
        if isinstance(module, _DeferredModule):
            module.execute()
        return getattr(module, name)(*args)

    return function


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int)) or (type(value) is tuple and all(map(_is_plain, value)))


def _itself(condition: bool) -> bool:
    return condition


_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "expect_true": _itself,
    "guard_or_false": _itself,
    "guard_or_true": _itself,
    "guard_size_oblivious": _itself,
    "is_nested_int": lambda size: False,
    "statically_known_true": _itself,
    "sym_eq": operator.eq,
}
# Modules of PyTorch that transformers, or a tensor on the meta device, needs only for these functions.
_DEFERRED: Mapping[str, tuple[tuple[str, ...], Mapping[str, Callable[..., Any]]]] = {
    "torch._dynamo": (("allow_in_graph", "assume_constant_result"), {"disable": _disable}),
    "torch.fx.experimental.symbolic_shapes": (
        (),
        {name: _on_plain(name, compute) for name, compute in _SYMBOLIC.items()},
    ),
}


# A submodule of the compiler that transformers imports, and that needs nothing of the package.
_SUBMODULE = ("torch._dynamo", "_trace_wrapped_higher_order_op")


def _defer_modules() -> None:
    import torch  # noqa: F401  (what is deferred is found in it, and it defers none itself)

    for name, (marks, stand_ins) in _DEFERRED.items():
        spec = None if name in sys.modules else importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            sys.modules[name] = _DeferredModule(spec, marks, stand_ins)
            parent, _, short = name.rpartition(".")
            setattr(sys.modules[parent], short, sys.modules[name])  # as an import does
            if name == _SUBMODULE[0]:
                _import_alone(sys.modules[name], _SUBMODULE[1])


def _import_alone(package: ModuleType, name: str) -> None:
    """Import a submodule without its package; without effect if there is none of this name."""
    assert package.__spec__ is not None
    full = f"{package.__name__}.{name}"
    spec = PathFinder.find_spec(full, package.__spec__.submodule_search_locations)
    if spec is not None and spec.loader is not None:
        sys.modules[full] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        setattr(package, name, module)
