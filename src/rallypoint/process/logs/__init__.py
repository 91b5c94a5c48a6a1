"""The destinations of workers' output: plan, log directory, log specs."""
