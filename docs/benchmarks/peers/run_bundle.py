"""A round that TFF compiled, on this Python's TensorFlow; prints one JSON line.

    python docs/benchmarks/peers/run_bundle.py BUNDLE

The data and the steps are those of `experiments.benchmark`. One client for each core trains at once, in threads of this
process.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import time

import numpy as np

import quap_tff  # isort: skip  # It turns on oneDNN, which TensorFlow asks for when it is loaded.
import tensorflow as tf


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('bundle', help='The folder that experiments.export wrote.')
  parser.add_argument('--dtype', default='float32', choices=['float32', 'bfloat16'], help='Only names the case.')
  parser.add_argument('--clients', type=int, default=30)
  parser.add_argument('--examples', type=int, default=600)
  parser.add_argument('--rounds', type=int, default=3, help='Timed rounds, after a first one that is not timed.')
  args = parser.parse_args()
  cores = len(os.sched_getaffinity(0))
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(cores)
  bundle, rng = quap_tff.Bundle(args.bundle), np.random.default_rng(0)
  data = [
    dict(
      client_id=np.int64(i),
      examples=dict(
        x=rng.random((args.examples, 28, 28, 1), np.float32), y=rng.integers(0, 10, args.examples, np.int32)
      ),
    )
    for i in range(args.clients)
  ]
  state, seconds = bundle.initialize(), []
  with concurrent.futures.ThreadPoolExecutor(cores) as pool:
    for _ in range(args.rounds + 1):
      begin = time.perf_counter()
      message, total = bundle.prepare(state), bundle.zero()
      for update in pool.map(bundle.work, data, [message] * len(data)):
        total = bundle.add(total, update)
      state, _ = bundle.update(state, total)
      seconds.append(time.perf_counter() - begin)
  median = statistics.median(seconds[1:])
  print(
    json.dumps(
      {
        'case': f'bundle_{args.dtype}',
        'version': tf.__version__,
        'samples_per_second': args.clients * args.examples / median,
        'seconds_per_round': median,
        'rounds': args.rounds,
      }
    ),
    flush=True,
  )


if __name__ == '__main__':
  main()
