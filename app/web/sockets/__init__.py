"""Connections that leave the threads of the web server for the loop of the process (ADR 31)."""
