"""Attacks on what runs release, and the studies of `experiments.attack`, one for each kind of attack."""
