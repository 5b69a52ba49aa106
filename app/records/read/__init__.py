"""Reading records: queries, views, expansion, aggregates."""
