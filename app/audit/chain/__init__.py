"""Hash chains of signed logs: digests, verification, checkpoints, cuts."""
