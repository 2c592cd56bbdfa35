"""Drawings that the program makes itself, for features that no client's data has formed."""
