"""The usage of each account, by meter and day, and its quotas (docs/usage.md)."""
