"""Webhooks: record changes delivered at least once."""
