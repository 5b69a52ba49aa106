"""Webhooks: every change of a record is told to those who asked, and none is lost."""
