"""Streams of changes: server-sent events and WebSockets (docs/adr/0031)."""
