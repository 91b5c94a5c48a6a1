"""Find why a worker failed in its output. Imported only after a failure."""
