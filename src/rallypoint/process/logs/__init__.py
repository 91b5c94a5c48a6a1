"""Where the output of workers goes: plan, log directory, log specs."""
