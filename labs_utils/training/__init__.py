"""The course's real training step, on one device or on several ranks, and the text that it learns from."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.training.step": ("TrainingStep", "build_model", "ATTENTION_OPERATORS"),
        "labs_utils.training.on_gpu": ("backward_peaks", "memory_snapshot"),
        "labs_utils.training.tracked": ("watch_parts", "watch_optimizer"),
    },
)
