"""One account as one file: exported, imported here or elsewhere, cloned."""
