"""Signing in: passwords, tokens and sessions, and who a request comes from."""
