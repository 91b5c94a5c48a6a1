"""Rallypoint within other programs; each module imports its program only when it is used."""
