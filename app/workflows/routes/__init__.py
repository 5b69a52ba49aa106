"""Routes of workflows, hooks and instances."""
