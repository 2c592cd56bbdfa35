"""`python -m quap_tff.account`: what clients have spent and which noise they need, without training anything."""
