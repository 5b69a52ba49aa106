"""The life of an account's data: bundles, retention by age, certificates of deletion."""
