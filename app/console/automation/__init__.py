"""Pages of webhooks and workflows."""
