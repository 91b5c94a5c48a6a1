"""The search for the cause of a worker's failure in its output. Imported only after a failure."""
