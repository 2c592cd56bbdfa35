"""How sums and reports reach the server."""
