"""A program of one's own, in NumPy: softmax regression on digits. Nothing here knows of quap_tff."""

import numpy as np

STEPS, LEARNING_RATE = 20, 0.5


def scores(weights, x):
  """float32[n, 10] of images."""
  kernel, bias = weights
  return x.reshape(len(x), -1) @ kernel.T + bias


def trained(weights, x, y):
  """The weights after some steps of gradient descent on all examples."""
  kernel, bias = (weight.copy() for weight in weights)
  x = x.reshape(len(x), -1).astype(np.float32)
  for _ in range(STEPS):
    logits = scores((kernel, bias), x)
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    slopes = chances / chances.sum(axis=1, keepdims=True)
    slopes[np.arange(len(y)), y] -= 1
    slopes *= np.float32(LEARNING_RATE / len(y))
    kernel -= slopes.T @ x
    bias -= slopes.sum(axis=0)
  return [kernel, bias]
