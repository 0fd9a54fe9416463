"""Run the notebooks and save their outputs in them, so that web pages show the outputs.

python -m tests.helpers.notebooks [NAME ...]
"""

import os
import pathlib
import sys
import tempfile

from nbclient import NotebookClient
from nbformat import NO_CONVERT, read, write

NOTEBOOKS = sorted((pathlib.Path(__file__).parent.parent.parent / "notebooks").glob("*.ipynb"))


def executed(path, folder, seconds):
    """Run a notebook in a folder; return it without the times and counts that differ from run to run."""
    notebook = read(path, NO_CONVERT)
    NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": str(folder)}}, record_timing=False).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def main():
    os.environ |= {"PYTHONPATH": str(NOTEBOOKS[0].parent.parent), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    for path in NOTEBOOKS:
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                write(executed(path, folder, 600), path)
            print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
