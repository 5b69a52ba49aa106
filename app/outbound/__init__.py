"""Outgoing requests and mails: checked targets, limited time and size."""
