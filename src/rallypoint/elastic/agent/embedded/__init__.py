"""Agents and processes inside another program. Torch has no such package."""
