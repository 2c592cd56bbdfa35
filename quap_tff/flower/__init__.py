"""Rounds of a bundle between real machines, with Flower carrying the messages. Nothing here imports TFF.

server_app.py    the ServerApp: state, ledger, who comes, the release, the certificate
client_app.py    the ClientApp: a node, which works on the data of its clients
node_program.py  the program of a node: it starts a SuperNode (supernode.py), and again when it has ended
own_program.py   a function of somebody's own program, which trains or evaluates: each call has a fresh process
operators.py     the key of who asks, whose signature each message to a node has
notes.py         what a node was asked last
sums.py          how the sum of a round is obtained: the one place that another protocol replaces
"""
