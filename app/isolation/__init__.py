"""`bin/atrium isolation-check`: two temporary accounts, one of which tries to access the other."""
