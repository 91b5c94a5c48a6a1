"""Rules of simulated jobs, one module for each part of what a job does."""
