"""One question, its answers: what a run needs, estimated, dry-run and measured; and what the answers are made of."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.recordings": ("recall", "benchmarks"),
        "labs_utils.answers.estimate": ("estimate_timeline",),
        "labs_utils.answers.live": ("measure_live", "live_run"),
        "labs_utils.answers.dry_run": ("dry_run_timeline", "NoMemoryMode"),
        "labs_utils.memory_model.host_memory": ("offloaded_bytes", "left_pinned_bytes"),
        "labs_utils.time_model.offload": ("moved_bytes", "offload_seconds", "recorded_host_rates"),
    },
)
