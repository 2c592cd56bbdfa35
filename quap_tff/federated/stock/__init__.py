"""TFF's own differentially private aggregators as mechanisms."""
