"""The operator's plane: events of all accounts in one place, and webhooks that receive them."""
