"""The search for the constants of a run, on data that the program makes."""
