"""The relay: the process between the workers' pipes and the consoles."""
