"""The API by which admins manage accounts, users, groups and roles."""
