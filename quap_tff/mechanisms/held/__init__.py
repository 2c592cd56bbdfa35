"""Noise that clients hold: its account, and the guard of a client. NumPy alone."""
