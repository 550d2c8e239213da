"""Execute the notebooks of this folder, and store their current output.

Run it with `python examples/notebooks/execute.py`; it needs nbclient and ipykernel.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.ipynb")):
        execute(path)
        print(path.name)
