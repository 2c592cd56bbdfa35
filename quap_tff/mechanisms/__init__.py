"""Mechanisms and their parts: the steps of a round as pure functions of tensors. Nothing here imports TFF."""
