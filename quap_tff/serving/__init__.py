"""A run: its state, its ledger, its average, and the order that makes its guarantee true."""
