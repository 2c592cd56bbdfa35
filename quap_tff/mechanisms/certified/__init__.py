"""The certified mechanism: its configuration, rounds, filter and planning."""
