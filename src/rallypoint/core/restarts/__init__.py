"""What a worker's failure costs: the budget of restarts, and whether restarting helps."""
