"""Several workers that run independently, and which of them a request goes to when it arrives."""

from optsched.problem.workers.memories import MAX_WORKERS, Workers, as_workers
from optsched.problem.workers.routers import (
    ROUTERS,
    Load,
    Router,
    RouterState,
    get_router,
    get_routers,
)

__all__ = [
    "MAX_WORKERS",
    "ROUTERS",
    "Load",
    "Router",
    "RouterState",
    "Workers",
    "as_workers",
    "get_router",
    "get_routers",
]
