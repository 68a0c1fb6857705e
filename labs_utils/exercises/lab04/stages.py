"""The stages of ZeRO, and what a rank holds at each by the paper."""

from __future__ import annotations

STAGES = (0, 1, 2, 3)


def bytes_at(stage: int, ranks: int) -> float:
    """Bytes per parameter by the ZeRO paper (arXiv 1910.02054, figure 1); only to draw limits between them.

    >>> [bytes_at(stage, ranks=4) for stage in STAGES]
    [16, 7.0, 5.5, 4.0]
    """
    return (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)[stage]
