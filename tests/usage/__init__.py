"""Tests of meters, quotas and fair share."""
