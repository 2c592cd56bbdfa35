"""The secure sum of runs in which clients hold the noise: SecAgg+ between nodes, over Flower's messages.

The protocol is that of J. H. Bell, K. A. Bonawitz, A. Gascón, T. Lepoint and M. Raykova: Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead, CCS 2020. Its graph is complete here: each node has all others as
neighbours, as in the protocol of Bonawitz et al. (CCS 2017), and so each knows who is in the sum.

agreement.py  key agreement, KA: X25519
shares.py     secret sharing by Shamir, and the authenticated encryption of shares
masks.py      the generator of masks, PRG: ChaCha20; and a node's masked vector
integers.py   how sums become vectors modulo 2³², and which plans fit
terms.py      what both ends agree on for a round, and why no list of the server opens a sum for too few
openings.py   which sums a node has opened
records.py    the messages of the four stages, and what a node keeps between them
checks.py     what a node refuses of what the server says about stages and parties
client.py     a node: the four stages
server.py     the server, as a `quap_tff.flower.sums.Sum`
"""
