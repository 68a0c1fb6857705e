"""Plausible mistakes in the toy exercises."""

import numpy as np


def mean_square__forgets_to_divide(values):
    return sum(value * value for value in values)


def mean_square__squares_the_mean(values):
    return (sum(values) / len(values)) ** 2


def mean_square__prints_instead_of_returning(values):
    print(sum(value * value for value in values) / len(values))


def extremes__swaps_them(values):
    return {"low": float(values.max()), "high": float(values.min())}


def extremes__gives_only_one(values):
    return {"low": float(values.min())}


def extremes__has_high_by_magnitude(values):
    return {"low": float(values.min()), "high": float(np.abs(values).max()) + 1}


def mean_distance__leaves_out_equal_pairs(values):
    return sum(np.abs(values - value).mean() for value in values) / (len(values) - 1)


def mean_distance__forgets_the_sign(values):
    return sum((values - value).mean() for value in values) / len(values)


def mean_distance__memory_holds_all_pairs(values):
    return np.abs(values[:, None] - values[None, :]).mean()
