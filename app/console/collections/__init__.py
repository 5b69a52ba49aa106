"""Pages of collections: schema, rules, revisions."""
