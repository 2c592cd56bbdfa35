"""A run from its setup to its results."""
