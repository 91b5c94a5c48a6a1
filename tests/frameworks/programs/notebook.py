"""Runs a notebook whose cells are the arguments, and prints what they put out."""

import sys

import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.outputs:
        print(output.get("text") or output["data"]["text/plain"])
