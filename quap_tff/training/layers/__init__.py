"""Layers that the models share, and how models are saved."""
