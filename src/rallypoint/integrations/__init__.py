"""Integrations with other programs; each module imports its program only when it is used."""
