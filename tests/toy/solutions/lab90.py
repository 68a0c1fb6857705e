"""Solutions of the toy exercises."""

import numpy as np

SQUARED = 2


def mean_square(values: list[int]) -> float:
    return _total(values) / len(values)


def _total(values):
    return sum(value**SQUARED for value in values)


def extremes(values: np.ndarray) -> dict[str, float]:
    return {"low": float(values.min()), "high": float(values.max())}


def mean_distance(values: np.ndarray) -> float:
    return sum(np.abs(values - value).mean() for value in values) / len(values)
