"""Plain data: the only values that go to student code and come back, in memory or as JSON and safetensors files.

Never pickle: a file can't run code when it is read. A value of any natural form becomes one of the exact types, so that
it can't bring its own `__eq__`.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

FILE_BYTES = 64 * 2**20
JSON_BYTES = 4 * 2**20  # parsed JSON takes about 30 times its size
EXACT_FLOATS = 2**53  # up to here a float holds every whole number
LIBRARIES = ("numpy", "torch")


class NotPlain(TypeError):
    """A value that is not plain data: one sentence naming what it is."""


def plain(value: Any) -> Any:
    """A deep copy of `value` made of exact plain types, whatever natural form it has.

    Plain are None, bool, str, float, int of 64 bits, list, dict with str keys, and `numpy.ndarray` and `torch.Tensor`
    of numbers. Subclasses of these become them, mappings dicts, tuples and ranges lists, numbers of numpy's and
    fractions Python's; a tensor moves to the CPU.

    Raises:
        NotPlain: anything else.

    >>> plain({"bytes": np.int64(3), "shape": (2, 4)})
    {'bytes': 3, 'shape': [2, 4]}
    """
    if value is None or type(value) in (bool, str, float):
        return value
    for kind, convert in CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    if _library_of(value) == "numpy" and value.dtype.kind in "biuf":
        return np.array(value, order="C", subok=False)
    if _library_of(value) == "torch":
        return _plain_tensor(value)
    raise NotPlain(_what_it_is(value))


def _plain_int(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise NotPlain("this int has more than 64 bits")
    return int.__index__(value)


def _plain_dict(value: Mapping) -> dict:
    items = dict.items(value) if isinstance(value, dict) else [(key, value[key]) for key in value]
    if not all(isinstance(key, str) for key, _ in items):
        raise NotPlain("this dict has a key that is no str")
    return {str.__str__(key): plain(item) for key, item in items}


def _plain_tensor(value: Any) -> Any:
    torch = sys.modules["torch"]
    if value.layout is not torch.strided:
        raise NotPlain("a sparse tensor is no plain one")
    with torch._C.DisableTorchFunctionSubclass():
        bare = value.detach().as_subclass(torch.Tensor)
        return bare.cpu().clone(memory_format=torch.contiguous_format)


# The first that fits; a bool is an int, too, and numpy's float64 a float.
CONVERSIONS = (
    ((bool, np.bool_), bool),
    (int, _plain_int),
    (np.integer, lambda value: _plain_int(int(value))),
    ((float, np.floating, Fraction), float),
    (str, str.__str__),
    (list, lambda value: [plain(item) for item in list.__iter__(value)]),
    (tuple, lambda value: [plain(item) for item in tuple.__iter__(value)]),
    (range, list),
    (Mapping, _plain_dict),
)


def as_numbers(value: Any, model: Any) -> Any:
    """Plain data with arrays and tensors as numbers and lists, and integral floats as ints, but where `model` has them.

    >>> as_numbers({"seconds": np.array(1.5), "bytes": np.array([1.0, 2.0])}, {"seconds": 2.0, "bytes": [1, 3]})
    {'seconds': 1.5, 'bytes': [1, 2]}
    """
    if _library_of(value) and not _library_of(model) and (not value.shape or type(model) is list):
        return as_numbers(value.tolist(), model)
    if type(value) is dict:
        models = model if type(model) is dict else {}
        return {key: as_numbers(item, models.get(key)) for key, item in value.items()}
    if type(value) is list:
        models = model if type(model) is list and len(model) == len(value) else [None] * len(value)
        return [as_numbers(item, other) for item, other in zip(value, models, strict=True)]
    is_whole = type(value) is float and value.is_integer() and abs(value) < EXACT_FLOATS
    if is_whole and type(model) is not float and not _library_of(model):
        return int(value)
    return value


def _library_of(value: Any) -> str | None:
    """ "numpy" or "torch" for their arrays; asks torch only where something else has imported it."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray):
        return "numpy"
    return "torch" if torch and isinstance(value, torch.Tensor) else None


def _what_it_is(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} holds no numbers"
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
