"""The prepared process, and how a worker runs a Python function or command line."""
