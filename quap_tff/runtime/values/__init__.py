"""Values, their errors and their traffic, for every runtime."""
