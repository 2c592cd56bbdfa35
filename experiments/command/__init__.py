"""A command line as a run: flags, their checks, and how a program ends."""
