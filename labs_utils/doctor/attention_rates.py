"""How quickly a GPU attends in each way, by sequence length, head_dim and mask: a part of `labs doctor --full`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from labs_utils.doctor.machine_rates import Rate
from labs_utils.profiling.timing import back_to_back
from labs_utils.time_model import subjects

TOKENS, WIDTH = 16384, 2048  # of all sequences together; of all heads together
LENGTHS, HEAD_DIMS = (512, 1024, 2048, 4096, 8192, 16384, 32768), (64, 128)
MOST_SCORE_BYTES = 2**34  # for a way that writes all scores, several times


def ways_to_attend(half: str) -> Iterator[Rate]:
    """FLOP/s of each way that runs here, forward and backward; 4 * seq_len² * head_dim a head, half of it if causal."""
    from labs_utils.kernels.attention_ways import WAYS

    for way, head_dim, causal, length in product(WAYS, HEAD_DIMS, (True, False), LENGTHS):
        shape = shape_of(length, head_dim, causal)
        scores = shape["batch"] * shape["heads"] * length**2
        if way in ("naive", "SDPA math") and 2 * scores > MOST_SCORE_BYTES:
            continue
        try:
            for direction, seconds, products in timed(WAYS[way], half, shape):
                rate = seconds.rate(2 * products * scores * head_dim / (2 if causal else 1))
                yield Rate(subject=subjects.way_to_attend(way, direction), shape=shape, per_second=rate, unit="FLOP/s")
        except (ImportError, RuntimeError):  # not installed, or not for this GPU
            break


def shape_of(length: int, head_dim: int, causal: bool) -> dict[str, int]:
    """Sizes for so many tokens a sequence, so that all tokens and all heads together stay the same."""
    batch, heads = max(1, TOKENS // length), WIDTH // head_dim
    return {"seq_len": length, "batch": batch, "heads": heads, "head_dim": head_dim, "causal": int(causal)}


def timed(attend, half: str, shape: dict[str, int]):
    """Direction, seconds and number of matrix products: of a forward without gradients, and of a backward."""
    import torch

    sizes = [shape[name] for name in ("batch", "heads", "seq_len", "head_dim")]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[half]
    q, k, v = (torch.randn(sizes, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    causal = bool(shape["causal"])
    with torch.no_grad():
        yield "forward", back_to_back(lambda: attend(q, k, v, causal)), 2
    result = attend(q, k, v, causal)
    gradient = torch.randn_like(result)
    yield "backward", back_to_back(lambda: torch.autograd.grad(result, (q, k, v), gradient, retain_graph=True)), 5
