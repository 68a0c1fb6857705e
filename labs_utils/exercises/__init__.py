"""Exercises: what a student writes, and the oracles that check it. Those of Lab NN are in `labNN`, one module each."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.exercises.attempts": ("check", "grade"),
        "labs_utils.exercises.contract": ("Exercise", "Result", "find"),
        "labs_utils.exercises.lab05.two_memories": ("TwoMemories",),
        "labs_utils.exercises.marking": ("close",),
        "labs_utils.exercises.saved_bytes": ("kept_bytes", "layer_saved_bytes"),
        "labs_utils.figures.predictions": ("predict", "reveal"),
    },
)
