"""The audit log: every change of data, in chains of hashes that anyone can verify (contract 7)."""
