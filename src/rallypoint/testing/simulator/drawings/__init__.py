"""What simulated jobs go through, one module for each kind of job."""
