"""Workflow triggers: events, schedules, requests."""
