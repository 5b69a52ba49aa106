"""`flask isolation-check`: two throw-away accounts, one of which tries to reach the other."""
