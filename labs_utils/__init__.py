"""Predict, track and teach the memory and time of training large language models.

The names below load on first use, so that importing the package needs neither torch nor a second's time.
"""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.run": ("Run", "RunError", "ModelShape", "PRESETS", "TINY", "LLAMA_125M", "LLAMA_1B", "LLAMA_8B"),
        "labs_utils.answer": ("Answer", "PARTS", "PHASES"),
        "labs_utils.device": ("Device", "find_device", "this_device", "CPU", "H100", "H200"),
        "labs_utils.allocator": ("CachingAllocator",),
        "labs_utils.timeline": ("Timeline",),
        "labs_utils.lone_notebook": ("set_up",),
        "labs_utils.recordings": ("recall", "benchmarks"),
        "labs_utils.answers.estimate": ("estimate",),
        "labs_utils.answers.dry_run": ("dry_run",),
        "labs_utils.answers.measure": ("measure",),
        "labs_utils.time_model.step": ("step_seconds",),
        "labs_utils.profiling.tracker": ("MemoryTracker",),
        "labs_utils.workers.launch": ("launch", "LaunchError"),
        "labs_utils.figures.plot": ("compare", "plot_parts", "plot_timeline", "plot_curves", "Curve"),
        "labs_utils.figures.tables": ("show_table",),
        "labs_utils.figures.predictions": ("predict", "reveal"),
        "labs_utils.exercises.contract": ("Exercise",),
        "labs_utils.exercises.attempts": ("check",),
    },
)
