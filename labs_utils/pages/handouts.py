"""Handouts: a notebook executed on this machine, as one self-contained HTML page to read on a phone or on paper.

`labs handouts notebooks/ --out handouts/` writes them, and an index of all that are there. With `--staff` the exercises
are filled with the solutions first. Committed notebooks are read, never written.
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

from labs_utils.pages.course import index_of, links, page_name, title_of
from labs_utils.pages.fill import fill, solutions, stubs
from labs_utils.pages.page import HandoutError, to_html

CELL_LIMIT_SECONDS = 600


def write_handouts(notebooks: Iterable[Path], out: Path, staff: bool = False) -> list[Path]:
    """Execute notebooks and write one HTML page for each into `out`, and an index. Returns the pages' paths.

    `notebooks` are files, or folders whose `.ipynb` files are taken in the order of their names. A page appears
    whole or not at all. A staff page has the exercises filled in from `solutions/`, which lies beside the notebooks'
    folder, and a file name of its own. The index lists the pages in `out` of all notebooks in the same folders.

    Raises:
        HandoutError: one sentence, at the first notebook that is missing, has a failing cell or lacks a solution.
    """
    files = _notebook_files(notebooks)
    out.mkdir(parents=True, exist_ok=True)
    pages = [_write_handout(path, out, staff) for path in files]
    course = [path for folder in dict.fromkeys(path.parent for path in files) for path in _beside(folder)]
    made = [(page_name(path.stem, staff), _read(path)) for path in course]
    there = [(page, notebook) for page, notebook in made if (out / page).is_file()]
    _write(out / page_name("index", staff), to_html(index_of(there), "All labs", staff=staff))
    return pages


def execute(notebook: NotebookNode, path: Path) -> NotebookNode:
    """The notebook with its outputs, run top to bottom in the folder of `path`; a progress bar counts the cells.

    Raises:
        HandoutError: one sentence, when a cell fails, hangs or kills its process.
    """
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
    files = [file for path in paths for file in (_beside(path) if path.is_dir() else [path])]
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


def _beside(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ipynb"))


def _write_handout(path: Path, out: Path, staff: bool) -> Path:
    notebook = _solved(_read(path), path) if staff else _read(path)
    titles = {near: title_of(_read(near)) or near.stem for near in _beside(path.parent)}
    executed = execute(notebook, path)
    html = to_html(executed, path.stem, path.parent, links(path, titles, staff), staff)
    return _write(out / page_name(path.stem, staff), html)


def _solved(notebook: NotebookNode, path: Path) -> NotebookNode:
    """The notebook with every exercise filled in from the solutions of its lab."""
    file = path.resolve().parent.parent / "solutions" / f"lab{path.stem[:2]}.py"
    found = solutions(file) if file.is_file() else {}
    if missing := ", ".join(stubs(notebook).keys() - found.keys()):
        raise HandoutError(f"{path.name}: a staff page needs {file}, with a solution of {missing}")
    return fill(notebook, found)


def _write(page: Path, html: str) -> Path:
    unfinished = page.with_name(f".{page.stem}.part")
    unfinished.write_text(html, encoding="utf-8")
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
