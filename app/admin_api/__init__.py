"""Endpoints for admins: accounts, users, groups and roles."""
