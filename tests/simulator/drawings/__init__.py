"""Plans of simulated jobs, one module for each kind of job."""
