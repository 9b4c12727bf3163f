"""Whether what is about to be made has room in memory: refused before, not killed after."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from optsched.errors import OptschedError

#: Of the memory that is available, what one thing may take.
SHARE = 0.5

#: Bytes that a nonzero of a linear model takes in a solver, a file or a model of Pyomo.
NONZERO = 200

_SMALL = 2**26  # bytes, below which nobody looks at what there is
_GROUPS = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a group: version 2, and 1


def available_memory() -> int:
    """Return the bytes that this process may still take: of the machine, its group, its limit."""
    page = os.sysconf("SC_PAGE_SIZE")
    found, held = [os.sysconf("SC_PHYS_PAGES") * page], [0, 0]
    with contextlib.suppress(OSError):
        held = [int(word) * page for word in Path("/proc/self/statm").read_text().split()[:2]]
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    for name in _LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            found.append(int((_GROUPS / name).read_text()) - held[1])
    with contextlib.suppress(ImportError):
        import resource

        if (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
            found.append(limit - held[0])
    return max(min(found), 0)


def require_nonzeros(count: int, what: str, error: type[OptschedError]) -> None:
    """Refuse a linear model whose nonzeros do not fit into memory."""
    advice = "shorten the horizon or take fewer requests"
    require_room(count, NONZERO, f"nonzeros {what}", advice, error)


def room_for(each: float) -> int:
    """Return how many things of this size fit into memory."""
    return int(SHARE * available_memory() / each)


def has_room(count: float, each: float) -> bool:
    """Return whether this many things of this size fit into memory."""
    return count * each <= _SMALL or count <= room_for(each)


def require_room(
    count: float, each: float, what: str, advice: str, error: type[OptschedError] = OptschedError
) -> None:
    """Refuse more things of one size than fit into memory, and say how many would fit."""
    if not has_room(count, each):
        raise error(
            f"{count:,.0f} {what} would take {count * each / 2**30:,.3g} GiB of memory, but "
            f"{SHARE:.0%} of what is available has room for {room_for(each):,}; {advice}"
        )
