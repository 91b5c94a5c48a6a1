"""What an agent reports: its event dispatcher, and the emitters of events and metrics."""
