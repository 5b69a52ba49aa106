"""What starts workflows: events, schedules, requests."""
