"""Agents within a program of somebody's: torch's agent classes, and `launch_agent`."""
