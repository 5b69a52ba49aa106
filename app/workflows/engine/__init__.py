"""Carries out the steps of instances."""
