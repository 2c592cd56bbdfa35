"""Networks for features, from drawings or from files."""
