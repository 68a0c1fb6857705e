"""The processes of a session and what they take, as proc(5) tells: for bounds that no rlimit has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SESSION = 3  # of the fields after a command's name in /proc/PID/stat
COUNTED = re.compile(r"^Pss_(?:Anon|Shmem): +(\d+) kB", re.MULTILINE)


def session_of(leader: int) -> list[int]:
    """The living processes of the session that a process leads, itself included."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [number for number in numbers if _leader(number) == leader]


def resident_bytes(processes: Iterable[int]) -> int:
    """What processes hold in memory, anonymous and shared, each page by their part of it."""
    kibibytes = 0
    for number in processes:
        with suppress(OSError):
            found = COUNTED.findall(Path(f"/proc/{number}/smaps_rollup").read_text())
            kibibytes += sum(map(int, found))
    return 1024 * kibibytes


def _leader(number: int) -> int | None:
    """The leader of a process's session; None for one that has ended or is a zombie."""
    with suppress(OSError):
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return int(fields[SESSION]) if fields[0] != "Z" else None
    return None
