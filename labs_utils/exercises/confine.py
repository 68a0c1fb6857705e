"""What the process of a student's code may reach: its own folder, the libraries, and of the course no oracle.

Linux's Landlock (landlock(7), include/uapi/linux/landlock.h) closes the file system and keeps signals inside, and
without capabilities not even root can lift a limit. Where the kernel has no Landlock, the files stay open.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

COURSE = Path(__file__).resolve().parents[2]
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/dev")
ORACLES = ("saved_bytes.py", "judge.py")  # beside the labs' folders
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH, NO_NEW_PRIVILEGES = 1, 1, 38
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER, TRUNCATE, DEVICE = (1 << bit for bit in (0, 1, 2, 3, 14, 15))
RIGHTS_OF_VERSION = (13, 14, 15, 15, 16)  # how many kinds of access each version of Landlock knows
SCOPES_FROM, SCOPES = 6, 0b11  # sockets without a name, and signals
CAPABILITY_VERSION = 0x20080522


class Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`."""

    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class Rule(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_, _layout_ = 1, "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def confine(folder: Path) -> bool:
    """Close the file system but for reading libraries and for `folder`, for good; whether the kernel could.

    Capabilities go, too. It holds for this process, which must have one thread, and for those that it starts.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _drop_capabilities(libc)
    version = version_of_landlock()
    if version < 1:
        return False
    rights = (1 << RIGHTS_OF_VERSION[min(version, len(RIGHTS_OF_VERSION)) - 1]) - 1
    wanted = Ruleset(rights, 0, SCOPES if version >= SCOPES_FROM else 0)
    size = ctypes.sizeof(wanted) if version >= SCOPES_FROM else 8
    rules = libc.syscall(CREATE_RULESET, ctypes.byref(wanted), size, 0)
    _allow(libc, rules, folder, rights)
    for path in readable():
        _allow(libc, rules, path, (EXECUTE | READ_FILE | READ_FOLDER) & rights)
    _allow(libc, rules, Path(os.devnull), (READ_FILE | WRITE_FILE | TRUNCATE) & rights)
    return libc.syscall(RESTRICT_SELF, rules, 0) == 0


def version_of_landlock() -> int:
    """The version of Landlock's interface in this kernel; less than 1 where there is none."""
    return ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, VERSION_FLAG)


def readable() -> Iterator[Path]:
    """The system, what Python imports from, and of the course all but labs' oracles, solutions, tests and notebooks."""
    places = {Path(path).resolve() for path in (*SYSTEM, sys.prefix, sys.base_prefix, *filter(None, sys.path))}
    yield from (path for path in places if path.exists() and not _holds_oracles(path))
    package = COURSE / "labs_utils"
    yield from (path for path in package.iterdir() if path.name != "exercises")
    yield from (path for path in (package / "exercises").glob("*.py") if path.name not in ORACLES)
    yield COURSE / "data"


def _holds_oracles(path: Path) -> bool:
    """Whether a path leads into the course, other than to an environment there, or the course lies in it."""
    environments = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    if any(path.is_relative_to(each) for each in environments if each.is_relative_to(COURSE)):
        return False
    return path.is_relative_to(COURSE) or COURSE.is_relative_to(path)


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    """Add a rule for what lies beneath a folder, or for one file."""
    if not path.is_dir():
        rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    libc.syscall(ADD_RULE, rules, PATH_BENEATH, ctypes.byref(Rule(rights, place)), 0)
    os.close(place)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    libc.capset(header, (ctypes.c_uint32 * 6)())
