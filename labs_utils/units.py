"""Numbers and bytes in words: inside the package bytes are bytes, on the page they are GiB."""

from __future__ import annotations

from typing import Any

KIB, MIB, GIB = 2**10, 2**20, 2**30


def worded(value: Any) -> str:
    """A number as a reader wants it; anything else as `str` has it.

    >>> worded(1234567), worded(0.123456), worded(1234.5), worded("none")
    ('1,234,567', '0.1235', '1,234', 'none')
    """
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def unit_of(nbytes: int) -> tuple[int, str]:
    """The size and the name of the unit for so many bytes, or for a figure whose largest number they are.

    >>> unit_of(5 * 2**20)
    (1048576, 'MiB')
    """
    return (GIB, "GiB") if nbytes >= GIB else (MIB, "MiB") if nbytes >= MIB else (KIB, "KiB")


def worded_bytes(nbytes: int) -> str:
    """Bytes in the unit that fits them.

    >>> worded_bytes(60 * 2**30), worded_bytes(3 * 2**20), worded_bytes(1000)
    ('60.0 GiB', '3.00 MiB', '1000 bytes')
    """
    size, unit = unit_of(nbytes)
    return f"{nbytes / size:,.{2 if nbytes < 10 * size else 1}f} {unit}" if nbytes >= KIB else f"{nbytes} bytes"


def gib_cell(nbytes: int) -> str:
    """The number of GiB in a column: two decimals, or two digits where that would leave none.

    >>> gib_cell(2**34), gib_cell(2**24)
    ('16.00', '0.016')
    """
    return f"{nbytes / GIB:.2f}" if nbytes >= GIB / 10 else f"{nbytes / GIB:.2g}"


def gib(nbytes: int) -> str:
    """The number of GiB in a sentence that names the unit itself.

    >>> gib(2**34)
    '16.0'
    """
    return f"{nbytes / GIB:.1f}"
