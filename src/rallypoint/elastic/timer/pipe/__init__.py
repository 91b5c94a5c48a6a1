"""The named pipe through which requests of timers come. Torch has no such folder."""
