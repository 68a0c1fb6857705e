"""Mutants of solutions that nobody could tell from the solution, each with the reason: {exercise: {change: reason}}."""

EQUAL: dict[str, dict[str, str]] = {}
