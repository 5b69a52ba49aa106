"""Former states of records, and erasing them for good."""
