"""Tests of proved domains."""
