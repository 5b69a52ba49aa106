"""Accounts (tenants) and who belongs to them: users, roles and groups."""
