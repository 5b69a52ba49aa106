"""Durable workflows, and hooks, their short form (contract section 9)."""
