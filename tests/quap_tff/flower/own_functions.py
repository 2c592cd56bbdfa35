"""Functions of a program of one's own: some that train, and some that fail. Nothing here is of quap_tff."""

import os
import signal
import sys
import threading

import numpy as np

_SEEN = []
not_a_function = 3


def leaks(weights, client, round_num):
  """Adds what it remembers of the clients before, as a model object that is used again does."""
  new = [weight + np.float32(client) + sum(_SEEN, np.float32(0)) for weight in weights]
  _SEEN.append(np.float32(1000 * client))
  return new


def arguments(weights, client, round_num):
  """Shows what it is given."""
  return [*weights, np.array([client, round_num], np.int64)]


def in_place(weights, client, round_num):
  """Changes what it is given."""
  for weight in weights:
    weight += 1
  return weights


def alone(weights):
  """Gives one number."""
  return float(weights[0].sum())


def half(weights):
  return 0.5


def two(weights):
  return 2.0


def weights_again(weights):
  return weights


def fails(weights, client, round_num):
  raise LookupError('the record of Ms. Smith is damaged')


def leaves(weights, client, round_num):
  sys.exit('in the middle')


def is_killed(weights, client, round_num):
  os.kill(os.getpid(), signal.SIGKILL)


def hangs(weights, client, round_num):
  threading.Event().wait()


def of_client(weights, client, round_num):
  """A step for most clients; those from 1 to 7 fail, each in a way of its own."""
  bad = {
    1: fails,
    2: leaves,
    3: lambda weights, client, round_num: [weight[:1] for weight in weights],
    4: lambda weights, client, round_num: [weight.astype(np.float64) for weight in weights],
    5: lambda weights, client, round_num: [weight * np.float32(np.nan) for weight in weights],
    6: lambda weights, client, round_num: None,
    7: hangs,
  }
  if client in bad:
    return bad[client](weights, client, round_num)
  return [weight - np.float32(2**-10 * client) for weight in weights]


def pid_of_a_child(weights, client, round_num):
  """Starts a process that does not end by itself, and gives its number."""
  pid = os.fork()
  if not pid:
    threading.Event().wait()
  return [np.array(pid)]


def gives_text(weights, client, round_num):
  return {'weight': weights[0]}


def gives_objects(weights, client, round_num):
  return [np.array([{}, object()])]
