"""Figures of answers and timelines: `compare`, `plot_parts`, `plot_timeline`. Each returns a matplotlib figure."""
