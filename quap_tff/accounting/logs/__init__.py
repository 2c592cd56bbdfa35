"""Logs of who took part in which round, of any program: how they are read, accounted for and reported."""
