"""The files of a certified run, and how they are read."""
