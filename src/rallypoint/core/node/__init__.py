"""The machine of one node: when its workers start, run and stop."""
