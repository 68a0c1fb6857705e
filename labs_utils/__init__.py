"""Predict, track and teach the memory and time of training large language models.

The names below load on first use, so that importing the package needs neither torch nor a second's time.
"""

import sys
from importlib import import_module
from types import ModuleType

_MODULE_OF = {
    "run": ("Run", "RunError", "ModelShape", "PRESETS", "TINY", "LLAMA_125M", "LLAMA_1B", "LLAMA_8B"),
    "answer": ("Answer", "PARTS", "PHASES"),
    "device": ("Device", "find_device", "this_device", "CPU", "H200"),
    "estimate": ("estimate",),
    "dry_run": ("dry_run", "dry_run_timeline"),
    "tracker": ("MemoryTracker", "Timeline"),
    "measure": ("measure",),
    "launch": ("launch", "LaunchError"),
    "recall": ("recall",),
    "plot": ("compare", "plot_parts", "plot_timeline", "plot_curves", "Curve"),
    "tables": ("show_table",),
    "exercises": ("Exercise", "check", "predict", "reveal"),
}
_HOME = {name: module for module, names in _MODULE_OF.items() for name in names}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"labs_utils has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"labs_utils.{_HOME[name]}"), name)


def __dir__():
    return __all__


class _Package(ModuleType):
    """Keeps `labs_utils.estimate` the function: importing the module of that name would put itself in its place."""

    def __setattr__(self, name, value):
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
