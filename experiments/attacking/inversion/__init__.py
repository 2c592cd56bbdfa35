"""Attacks that recover examples from updates."""
