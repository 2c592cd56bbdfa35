"""Descent with privately chosen steps and noise, after Lee and Kifer 2018."""
