"""Fixed features in place of examples."""
