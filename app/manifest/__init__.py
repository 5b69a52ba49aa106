"""Definitions as a file: exported, planned and applied (`atrium.yaml`)."""
