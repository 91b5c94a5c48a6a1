"""Rallypoint launches, watches and heals distributed jobs.

Importing this package imports nothing else: the launcher's start-up path stays light, and a
user's own process pays only for the module that it asks for.
"""

__version__ = "0.1.0"
