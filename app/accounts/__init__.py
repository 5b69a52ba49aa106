"""Accounts (tenants) and their users, roles and groups."""
