"""The machine of one node, which decides when its workers start and stop."""
