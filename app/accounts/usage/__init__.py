"""What each account uses, by meter and day, and its quotas (docs/usage.md)."""
