"""The agent of one node, as a library."""
