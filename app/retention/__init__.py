"""Retention: how long an account keeps records, deliveries and workflow instances."""
