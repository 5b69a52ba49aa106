"""Collections: user-defined schemas, their tables, and who may do what with their records."""
