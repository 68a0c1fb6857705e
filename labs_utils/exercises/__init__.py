"""Exercises: what a student writes, and the oracles that check it. Lab NN's are in `labNN`, as `EXERCISES`."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.exercises.comparing": ("close",),
        "labs_utils.exercises.contract": ("Exercise", "Result", "find"),
        "labs_utils.exercises.grading": ("check", "grade"),
        "labs_utils.exercises.kept": ("kept_bytes", "layer_saved_bytes"),
        "labs_utils.exercises.two_memories": ("TwoMemories",),
        "labs_utils.figures.predictions": ("predict", "reveal"),
    },
)
