"""`lazy_face`: a package's public names, each loaded from its module on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_face(
    package: str, names_of: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the package; `names_of` maps modules to the names taken from them.

    So importing a package costs nothing, and a name costs what its own module needs (PEP 562).
    """
    home = {name: module for module, names in names_of.items() for name in names}
    public = sorted(home)

    def load(name: str):
        if name not in home:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(public)}")
        return getattr(import_module(home[name]), name)

    return load, lambda: public, public
