"""Folders of runs: their files, checkpoints and origin."""
