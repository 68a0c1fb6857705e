"""Exercises: what a student writes, and the oracles that check it. Lab NN's are in `labNN.py`, as `EXERCISES`."""

from labs_utils.exercises.comparing import close
from labs_utils.exercises.contract import Exercise, Result, find
from labs_utils.exercises.grading import check, grade
from labs_utils.predictions import predict, reveal

__all__ = ["Exercise", "Result", "check", "close", "find", "grade", "predict", "reveal"]
