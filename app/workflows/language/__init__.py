"""The workflow language: steps, templates, schedules and their validation."""
