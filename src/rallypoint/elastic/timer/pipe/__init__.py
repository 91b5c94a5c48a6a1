"""The named pipe for requests of timers. Torch has no such package."""
