"""Sweeps: a grid of flags, the runs that it means, and running them side by side."""
