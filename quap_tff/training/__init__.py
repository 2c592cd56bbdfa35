"""Local training at a client, models, and their evaluation."""
