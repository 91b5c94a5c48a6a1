"""Agents and processes inside somebody's program. Torch has no such folder."""
