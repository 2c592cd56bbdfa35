"""Noise: Gaussian, in integers, correlated over rounds."""
