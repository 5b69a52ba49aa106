"""Retention: how long an account keeps records, deliveries, instances and its audit log."""
