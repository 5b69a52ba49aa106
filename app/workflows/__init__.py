"""Workflows that finish what they start, and hooks, their one-step form (contract section 9)."""
