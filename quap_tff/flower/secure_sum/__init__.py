"""Flower's SecAgg+ as the secure sum of runs in which clients hold the noise, with checks of its own at both ends.

masks.py      what hides a node's integers: ChaCha20, where Flower has a generator with 32 bits
integers.py   how integers go through Flower's quantiser and modulus unchanged, and which plans fit
terms.py      what both ends agree on for a round, and why no list of the server opens a sum for too few
client.py     a node: what it refuses in each stage
server.py     the four stages, as a `quap_tff.flower.sums.Sum`
"""
