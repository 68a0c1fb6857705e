"""How large a block and a tile are: as large as this GPU's shared memory takes, since both then travel less often."""

from __future__ import annotations

import torch

# (queries of a block, keys of a tile, warps, stages), the quickest first, as tried on an H200 with head_dim 128
FORWARD = ((128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 2), (64, 32, 4, 2), (32, 16, 4, 1))
KEYS = ((64, 64, 4, 2), (32, 32, 4, 2), (16, 16, 4, 1))
QUERIES = ((128, 64, 8, 3), (64, 64, 4, 2), (32, 32, 4, 2), (16, 16, 4, 1))
INTERPRETED = (64, 64, 4, 1)  # no shared memory there, and each program takes Python's time


def tile_sizes(q: torch.Tensor, choices: tuple[tuple[int, int, int, int], ...], blocks: int = 1) -> dict[str, int]:
    """The first choice whose tiles fit the GPU's shared memory: `blocks` of the block's size, and two tiles a stage."""
    if q.device.type == "cpu":
        return named(INTERPRETED)
    room = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin
    row = q.shape[-1] * q.element_size()
    if q.dtype == torch.float32:
        room //= 2  # a product in fp32 is three, of parts that lie there too
    return named(next((each for each in choices if needed(each, row, blocks) <= room), choices[-1]))


def needed(choice: tuple[int, int, int, int], row_bytes: int, blocks: int) -> int:
    """Bytes of shared memory, nearly: blocks and tiles, without what the compiler adds for itself."""
    block, tile, _, stages = choice
    return (blocks * block + 2 * tile * stages) * row_bytes


def named(choice: tuple[int, int, int, int]) -> dict[str, int]:
    """As the kernels' launches call them."""
    block, tile, warps, stages = choice
    return {"BLOCK": block, "TILE": tile, "num_warps": warps, "num_stages": stages, "STAGES": stages}
