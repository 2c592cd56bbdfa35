"""TFF's workers, on this machine or on others."""
