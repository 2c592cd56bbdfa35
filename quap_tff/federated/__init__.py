"""The lift to TFF: aggregation processes and learning processes."""
