"""Handouts: a notebook executed on this machine, as one self-contained HTML page to read on a phone or on paper.

`labs handouts notebooks/ --out handouts/` writes them. Committed notebooks are read, never written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from tqdm import tqdm

from labs_utils.pages.page import HandoutError, to_html

CELL_LIMIT_SECONDS = 600


def write_handouts(notebooks: Iterable[Path], out: Path) -> list[Path]:
    """Execute notebooks and write one HTML page for each into `out`. Returns the pages' paths.

    `notebooks` are files, or folders whose `.ipynb` files are taken in the order of their names. A page appears
    whole or not at all.

    Raises:
        HandoutError: one sentence, at the first notebook that is missing or has a failing cell.
    """
    out.mkdir(parents=True, exist_ok=True)
    return [_write_handout(path, out) for path in _notebook_files(notebooks)]


def execute(path: Path) -> NotebookNode:
    """The notebook at `path` with its outputs, run top to bottom in its own folder; a progress bar counts the cells.

    Raises:
        HandoutError: one sentence, when the file isn't a notebook, or a cell fails, hangs or kills its process.
    """
    notebook = _read(path)
    running = {}
    cells = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
    with tqdm(total=cells, desc=path.stem, unit="cell") as bar:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=CELL_LIMIT_SECONDS,
            extra_arguments=["--log-level=ERROR"],  # the kernel's advice on transports is not the student's concern
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_execute=lambda cell, cell_index: running.update(source=cell.source, number=cell_index + 1),
            on_cell_executed=lambda **_: bar.update(),
        )
        try:
            return client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            raise HandoutError(f"{path.name}, {_place(running)}: {_reason(error)}") from None


def _notebook_files(paths: Iterable[Path]) -> list[Path]:
    files = [file for path in paths for file in (sorted(path.glob("*.ipynb")) if path.is_dir() else [path])]
    for file in files:
        if not file.is_file():
            raise HandoutError(f"{file} is not there; give notebooks, or a folder of them")
    if not files:
        raise HandoutError("no notebook in the folder given")
    return files


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError) as error:
        raise HandoutError(f"{path.name} is not a notebook ({type(error).__name__})") from None


def _write_handout(path: Path, out: Path) -> Path:
    page = out / f"{path.stem}.html"
    unfinished = out / f".{path.stem}.part"
    unfinished.write_text(to_html(execute(path), path.stem, path.parent), encoding="utf-8")
    os.replace(unfinished, page)
    return page


def _place(running: dict) -> str:
    if not running:
        return "before the first cell"
    return f"cell {running['number']} ({running['source'].strip().splitlines()[0]!r})"


def _reason(error: Exception) -> str:
    if isinstance(error, CellExecutionError):
        return f"{error.ename}: {error.evalue}".splitlines()[0]
    if isinstance(error, CellTimeoutError):
        return f"ran longer than {CELL_LIMIT_SECONDS} seconds"
    return "its Python process died"
