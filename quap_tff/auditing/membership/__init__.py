"""Attacks that tell whose data a model was trained on."""
