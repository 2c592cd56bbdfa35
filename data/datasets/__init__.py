"""Datasets by name, and how they become federations."""
