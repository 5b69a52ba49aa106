"""Events of all accounts, from processes that are killed."""
