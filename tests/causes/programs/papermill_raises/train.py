import nbformat
import papermill

book = nbformat.v4.new_notebook()
book.cells = [
    nbformat.v4.new_code_cell("lr = -0.1\nprint('training with', lr)"),
    nbformat.v4.new_code_cell("if lr <= 0:\n    raise ValueError(f'the learning rate must be positive, got {lr}')"),
    nbformat.v4.new_code_cell("print('done')"),
]
book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
nbformat.write(book, "train.ipynb")
papermill.execute_notebook("train.ipynb", "out.ipynb", log_output=True, progress_bar=True)
