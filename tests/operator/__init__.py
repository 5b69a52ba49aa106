"""Tests of events of all accounts, and of the operator's webhooks."""
