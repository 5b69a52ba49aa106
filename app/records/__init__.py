"""Records of collections: read and written with Core SQL, always scoped by account."""
