"""Tests of `app/realtime`."""
