"""Pages of users, groups, roles, API keys, and the own profile."""
