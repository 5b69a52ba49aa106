"""Who acts, in which account, and how deep in a chain of triggers: set per request or job."""
