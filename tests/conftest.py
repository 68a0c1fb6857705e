"""The workers of pytest-xdist share the machine's cores; else each takes all of them, mostly to wait for the others."""

import os

from labs_utils.device import usable_cores
from labs_utils.lone_notebook import interpret_kernels_without_gpu

WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
os.environ["OMP_NUM_THREADS"] = str(max(1, usable_cores() // WORKERS))  # read as torch is imported, here or in children

interpret_kernels_without_gpu()


def pytest_collection_modifyitems(items):
    """Files with slow tests come first, so that no worker is left alone with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path.suffix != ".ipynb" and item.path not in slow)
