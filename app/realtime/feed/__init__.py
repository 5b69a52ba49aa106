"""The change feed: every change of an account's records, numbered in the order of commits."""
