"""Figures, tables and guesses in a notebook: one look for each part, hollow where it was recorded elsewhere."""

from labs_utils.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "labs_utils.figures.plot": (
            "Curve",
            "Interval",
            "compare",
            "plot_parts",
            "plot_timeline",
            "plot_curves",
            "plot_schedule",
        ),
        "labs_utils.figures.panels": ("plot_timelines", "plot_points", "plot_point_panels"),
        "labs_utils.figures.tables": ("show_table",),
        "labs_utils.figures.diagrams": ("diagram",),
        "labs_utils.figures.lecture": ("lecture_said",),
        "labs_utils.units": ("worded_bytes",),
        "labs_utils.figures.predictions": ("predict", "reveal"),
    },
)
