"""Durable workflows, and hooks, their short form."""
