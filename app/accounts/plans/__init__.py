"""Plans: the quotas and flags that accounts have by what they pay for."""
