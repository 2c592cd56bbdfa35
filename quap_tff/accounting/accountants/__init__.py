"""Theorems that turn the history of a client into ε at a δ."""
