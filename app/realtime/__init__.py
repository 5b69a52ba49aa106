"""Streams of changes: server-sent events and WebSockets (contract section 15, docs/adr/0031)."""
