"""The cases of the benchmark, each run in a process of its own."""
