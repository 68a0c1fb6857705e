"""Where the repository and its tests are."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
TOY = TESTS / "toy"
