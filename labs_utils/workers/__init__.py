"""Other processes: ranks that are launched, watched and ended together, and what one rank alone can tell."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.workers.launch": ("LaunchError",),
        "labs_utils.workers.silent_peers": ("lone_rank",),
        "labs_utils.workers.threads": ("on_ranks",),
    },
)
