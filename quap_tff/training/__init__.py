"""What a client does with its examples, models, and their evaluation."""
