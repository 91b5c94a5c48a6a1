"""`rallypoint migrate`: a command line of another launcher becomes one of Rallypoint."""
