"""PyTorch's CUDA caching allocator, in Python: what `max_memory_allocated` and reserved memory make of tensor sizes.

The allocator hands out whole blocks, so it counts a little more than tensors ask for, and it keeps freed blocks for
itself. Rules and constants are those of torch 2.9 to 2.13, c10/cuda/CUDACachingAllocator.cpp (`round_size`,
`get_allocation_size`, `get_free_block`, `should_split`, `free_block`), default settings, one stream.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import inf

MIB = 2**20
BLOCK_BYTES = 512
SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES = 1 * MIB, 2 * MIB
LARGE_REQUEST_BYTES, LARGE_SEGMENT_BYTES = 10 * MIB, 20 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB


def round_up(size: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `size`.

    >>> round_up(513, 512), round_up(512, 512)
    (1024, 512)
    """
    return -(-size // multiple) * multiple


def pinned_bytes(size: int) -> int:
    """The block of pinned host memory for `size` bytes: the next power of two.

    aten/src/ATen/core/CachingHostAllocator.h, `CachingHostAllocatorImpl::allocate`.

    >>> pinned_bytes(5), pinned_bytes(8)
    (8, 8)
    """
    return 1 << max(0, size - 1).bit_length()


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment; `before` and `after` are its neighbours there."""

    address: int
    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    free: bool = False


class OutOfMemory(Exception):
    """A segment is needed for which the device has no memory left, though blocks of others may be free."""


class CachingAllocator:
    """Serve `allocate` and `free`; read `allocated_bytes`, `reserved_bytes` at any time.

    With a `limit_bytes`, `allocate` raises `OutOfMemory` where the segments would take more.

    >>> allocator = CachingAllocator()
    >>> block = allocator.allocate(1)
    >>> allocator.allocated_bytes, allocator.reserved_bytes
    (512, 2097152)
    """

    def __init__(self, limit_bytes: float = inf):
        self.limit_bytes = limit_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self._next_address = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # by size and address

    def allocate(self, requested_bytes: int) -> Block:
        """A block for `requested_bytes`: the smallest free one that fits, split if enough of it would be left."""
        size = round_up(max(requested_bytes, 1), BLOCK_BYTES)
        small = size <= SMALL_REQUEST_BYTES
        block = self._best_fit(size, small) or self._new_segment(size, small)
        block.free = False
        left = block.size - size
        if left >= BLOCK_BYTES if small else left > SMALL_REQUEST_BYTES:
            self._split(block, size)
        self.allocated_bytes += block.size
        return block

    def free(self, block: Block) -> None:
        """Take a block back and merge it with the free neighbours."""
        self.allocated_bytes -= block.size
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._take_from_free(other)
                self._merge(block, other)
        self._add_to_free(block)

    def _best_fit(self, size: int, small: bool) -> Block | None:
        pool = self._free[small]
        index = bisect_left(pool, (size,))
        return pool.pop(index)[2] if index < len(pool) else None

    def _new_segment(self, size: int, small: bool) -> Block:
        if small:
            segment_bytes = SMALL_SEGMENT_BYTES
        elif size < LARGE_REQUEST_BYTES:
            segment_bytes = LARGE_SEGMENT_BYTES
        else:
            segment_bytes = round_up(size, SEGMENT_ROUNDING_BYTES)
        if self.reserved_bytes + segment_bytes > self.limit_bytes:
            self._give_back_segments()
        if self.reserved_bytes + segment_bytes > self.limit_bytes:
            raise OutOfMemory
        block = Block(self._next_address, segment_bytes, small)
        self._next_address += segment_bytes
        self.reserved_bytes += segment_bytes
        return block

    def _give_back_segments(self) -> None:
        """Give every segment of which nothing is in use back to the device (`release_cached_blocks`)."""
        for pool in self._free.values():
            whole = [block for *_, block in pool if block.before is None and block.after is None]
            self.reserved_bytes -= sum(block.size for block in whole)
            for block in whole:
                self._take_from_free(block)

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.small, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._add_to_free(rest)

    def _merge(self, block: Block, other: Block) -> None:
        """Grow `block` by its free neighbour `other`."""
        if other is block.before:
            block.address, block.before = other.address, other.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        block.size += other.size

    def _add_to_free(self, block: Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.address, block))

    def _take_from_free(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.size, block.address))]
