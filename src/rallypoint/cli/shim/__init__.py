"""`rallypoint shim`: a command that starts torchrun itself starts Rallypoint."""
