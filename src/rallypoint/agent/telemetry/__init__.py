"""The reports of an agent: its event dispatcher, and the emitters of events and metrics."""
