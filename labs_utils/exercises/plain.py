"""Plain data: the only values that go to student code and come back, in memory or as JSON and safetensors files.

Never pickle, and never a subclass: a file can't run code when it is read, and a value can't bring its own `__eq__`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FILE_BYTES = 64 * 2**20
JSON_BYTES = 4 * 2**20  # parsed JSON takes about 30 times its size
LIBRARIES = ("numpy", "torch")
NUMBERS = {np.dtype(code).type for code in "?" + np.typecodes["AllInteger"] + "efd"}  # exact types, no subclass


class NotPlain(TypeError):
    """A value that is not plain data: one sentence naming what it is."""


def plain(value: Any) -> Any:
    """A deep copy of `value` made of exact plain types; a tuple becomes a list, a tensor moves to the CPU, and a
    number of numpy's becomes Python's.

    Plain are None, bool, str, float, int of 64 bits, list, dict with str keys, and `numpy.ndarray` and
    `torch.Tensor` of numbers.

    Raises:
        NotPlain: anything else, a subclass of these included.

    >>> plain({"bytes": np.int64(3), "shape": (2, 4)})
    {'bytes': 3, 'shape': [2, 4]}
    """
    exact = type(value)
    if value is None or exact in (bool, str, float) or (exact is int and -(2**63) <= value < 2**63):
        return value
    if exact in NUMBERS:
        return plain(value.item())
    if exact in (list, tuple):
        return [plain(item) for item in value]
    if exact is dict and all(type(key) is str for key in value):
        return {key: plain(item) for key, item in value.items()}
    if exact is np.ndarray and value.dtype.kind in "biuf":
        return np.array(value, order="C")
    if _library_of(value) == "torch" and value.layout is sys.modules["torch"].strided:
        return value.detach().cpu().clone(memory_format=sys.modules["torch"].contiguous_format)
    raise NotPlain(_what_it_is(value))


def as_numbers(value: Any, model: Any) -> Any:
    """Plain data with arrays and tensors of no dimension as numbers, where `model` has numbers in the same place.

    >>> as_numbers({"seconds": np.array(1.5)}, {"seconds": 2.0})
    {'seconds': 1.5}
    """
    if type(model) in (bool, int, float) and _library_of(value) and not value.shape:
        return value.item()
    if type(value) is type(model) is dict:
        return {key: as_numbers(item, model.get(key)) for key, item in value.items()}
    if type(value) is type(model) is list and len(value) == len(model):
        return [as_numbers(item, other) for item, other in zip(value, model, strict=True)]
    return value


def _library_of(value: Any) -> str | None:
    """ "numpy" or "torch" for their own arrays; asks torch only where something else has imported it."""
    torch = sys.modules.get("torch")
    return "numpy" if type(value) is np.ndarray else "torch" if torch and type(value) is torch.Tensor else None


def _what_it_is(value: Any) -> str:
    if type(value) in (int, dict, np.ndarray):
        return f"this {type(value).__name__} holds what is no plain data: an int over 64 bits, a key that is no str, …"
    return f"{type(value).__name__} is not a plain number, str, list, dict, numpy array or torch tensor"


def save(value: Any, stem: Path) -> None:
    """Write plain data to `stem`.json, its arrays to `stem`.numpy and `stem`.torch; the JSON appears last and whole.

    Raises:
        NotPlain: more than `JSON_BYTES` without the arrays, which `load` would refuse.
    """
    arrays: dict[str, dict] = {library: {} for library in LIBRARIES}
    text = json.dumps(_take_arrays_out(value, arrays))
    if len(text) > JSON_BYTES:
        raise NotPlain(f"{len(text):,} characters of lists and numbers are too many; use an array")
    for library, named in arrays.items():
        if named:
            import_module(f"safetensors.{library}").save_file(named, f"{stem}.{library}")
    Path(f"{stem}.part").write_text(text, "utf-8")
    os.replace(f"{stem}.part", f"{stem}.json")


def _take_arrays_out(value: Any, arrays: dict[str, dict]) -> Any:
    if isinstance(value, list):
        return [_take_arrays_out(item, arrays) for item in value]
    if isinstance(value, dict):
        return {key: _take_arrays_out(item, arrays) for key, item in value.items()}
    if library := _library_of(value):
        name = str(len(arrays[library]))
        arrays[library][name] = value
        return {f"__{library}__": name}
    return value


def load(stem: Path) -> Any:
    """What `save` wrote, from files that nobody vouches for.

    Raises:
        Exception: of many kinds, where a file is missing, too large, not a regular file, or not what `save` writes.
    """
    data = json.loads(_read(f"{stem}.json", JSON_BYTES))
    arrays = {
        library: import_module(f"safetensors.{library}").load(_read(f"{stem}.{library}", FILE_BYTES))
        for library in LIBRARIES
        if os.path.lexists(f"{stem}.{library}")
    }
    return plain(_put_arrays_back(data, arrays))


def _put_arrays_back(value: Any, arrays: dict[str, dict]) -> Any:
    if isinstance(value, list):
        return [_put_arrays_back(item, arrays) for item in value]
    if isinstance(value, dict):
        for library, named in arrays.items():
            if value.keys() == {f"__{library}__"}:
                return named[value[f"__{library}__"]]
        return {key: _put_arrays_back(item, arrays) for key, item in value.items()}
    return value


def _read(path: str, limit_bytes: int) -> bytes:
    """The bytes of a regular file: a link, a pipe that never ends or a huge file is refused unread."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit_bytes:
            raise ValueError(f"{path} is not a regular file of at most {limit_bytes} bytes")
        return file.read(limit_bytes)
