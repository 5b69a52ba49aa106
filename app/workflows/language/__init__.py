"""The definition of a workflow: its steps, templates and schedules, and what is checked of them."""
