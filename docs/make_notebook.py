"""Runs `examples/explore.ipynb` and writes its outputs into it. Run by `make notebook`."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples/explore.ipynb"
# Without the versions of Python and Jupyter that ran it.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def executed() -> str:
    """The notebook after a run in a new folder that has its place in a checkout."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with TemporaryDirectory() as checkout:
        folder = Path(checkout, "examples")
        folder.mkdir()
        Path(checkout, "samples").symlink_to(ROOT / "samples")
        # IPython does not read or change the profile of the person who runs this.
        NotebookClient(
            notebook,
            resources={"metadata": {"path": str(folder)}},
            coalesce_streams=True,
            record_timing=False,
        ).execute(env=os.environ | {"IPYTHONDIR": checkout})
    notebook.metadata = nbformat.from_dict(METADATA)
    return str(nbformat.writes(notebook)) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(executed())
