"""The audit log: every data change, in hash chains that anyone can verify."""
