"""The measurements of `experiments.benchmark`, each a function that it runs in a process of its own.

python -m experiments.benchmark_cases FUNCTION ARGUMENTS_AS_JSON    # prints the result as JSON on the last line
"""

import collections
from collections.abc import Sequence
import concurrent.futures
import json
import statistics
import sys
import time
from typing import Any, Callable

import numpy as np

from experiments import command_line
import quap_tff
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff

psutil = lazy.module('psutil')
models = lazy.module('quap_tff.training.models')
runtime = lazy.module('quap_tff.runtime')
saving = lazy.module('quap_tff.training.saving')

# The papers' MNIST model. Images are random: pixels do not change the time of a step.
_MODEL, _INPUT_SHAPE, _CLASSES = 'mnist_cnn', (28, 28, 1), 10
_LEARNING_RATE = 0.005
_SMALL_SHAPE = (8, 8, 1)  # The shape of the digits.

# The rules for the clipping norm in `cohort`. The first is the default.
_CLIP_RULES = {
  'current': quap_tff.clip_rules.QuantileEma,
  'previous': lambda: quap_tff.clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
  'fixed': quap_tff.clip_rules.Fixed,
  'private_quantile': quap_tff.clip_rules.PrivateQuantile,
}

# Trainable tensors of TFF's own EMNIST baselines: '2nn' with 199,210 weights and 'cnn' with 1,663,370.
_WEIGHT_SHAPES = {
  '0.2M': [(784, 200), (200,), (200, 200), (200,), (200, 10), (10,)],
  '1.7M': [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 512), (512,), (512, 10), (10,)],
}


def check(device: str) -> None:
  """Raises `runtime.DeviceError` if there is no such device here."""
  runtime.prepare(runtime.RuntimeConfig(device=device))


def case(name: str, clients: int, examples: int, batch_size: int, rounds: int, device: str) -> dict[str, float]:
  """The speed of one of the benchmark's cases (median over `rounds`, after one that is not timed)."""
  data = _random_clients(clients, examples)
  if name in ('ceiling', 'ceiling_bfloat16'):
    run_round = _ceiling_round(data, batch_size, device, 'float32' if name == 'ceiling' else 'bfloat16')
    return _speed(clients * examples, _time_rounds(run_round, rounds))
  kind = 'native' if name == 'tff_worker' else 'in_process'
  with runtime.activate(runtime.RuntimeConfig(kind=kind, device='cpu' if kind == 'native' else device)):
    if name.startswith('tff_'):
      run_round = _round_of(_stock_process(clients), _batched(data, batch_size))
    else:
      process = _quap_process(clients, batch_size, compute_dtype=name[len('quap_') :])
      run_round = _round_of(process, _whole(data))
    return _speed(clients * examples, _time_rounds(run_round, rounds))


def cohort(rule: str, clients: int, examples: int, batch_size: int, rounds: int) -> dict[str, float]:
  """The speed with a large cohort, whose data are made as each client's turn comes.

  Args:
    rule: A key of `_CLIP_RULES`, or 'certified'.
    clients: The cohort, which is everybody.
    examples: Examples of each client.
    batch_size: Examples in each local step.
    rounds: Timed rounds, after a first one that is not timed.
  """
  with runtime.activate():
    if rule == 'certified':
      config = quap_tff.CertifiedConfig(num_clients=clients, epsilon=3.0, delta=1e-5)
      process = quap_tff.CertifiedPlan(config, [list(range(clients))] * (rounds + 1)).build_process(
        models.build_model_fn(_MODEL, _INPUT_SHAPE, _CLASSES),
        tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
        client_work=quap_tff.ClientWorkConfig(batch_size=batch_size),
      )
    else:
      process = _quap_process(clients, batch_size, clip=_CLIP_RULES[rule]())
    data = runtime.client_values(lambda i: _client(i, *_random_examples(i, examples)), range(clients))
    return _speed(clients * examples, _time_rounds(_round_of(process, data), rounds))


def small(model: str, examples: int, clients: int, batch_size: int, rounds: int, threads: int = 1) -> dict[str, float]:
  """The speed of clients with little to do, and CPU milliseconds for each of them.

  The CPU time is that of the fastest round. It is all that the process uses, and includes the making of datasets.

  Args:
    model: A name that `models.build_model_fn` knows, for images of 8x8 pixels.
    examples: Examples of each client.
    clients: The cohort, which is everybody.
    batch_size: Examples in each local step.
    rounds: Timed rounds, after a first one that is not timed.
    threads: How many clients train at once.
  """
  examples_of = [_random_examples(i, examples, _SMALL_SHAPE) for i in range(clients)]
  with runtime.activate(runtime.RuntimeConfig(device='cpu', num_threads=threads)):
    process = _quap_process(clients, batch_size, model=model, input_shape=_SMALL_SHAPE)
    run_round = _round_of(process, runtime.client_values(lambda i: _client(i, *examples_of[i]), range(clients)))
    cpu_seconds = _time_rounds(run_round, rounds, time.process_time)
    speed = _speed(clients * examples, _time_rounds(run_round, rounds))
  return {**speed, 'cpu_ms_per_client': 1000 * min(cpu_seconds) / clients}


def aggregation(clients: int, rounds: int) -> list[dict[str, Any]]:
  """Milliseconds of one aggregation (median) by kind and number of weights, in process; the kinds take turns."""
  last_clip = quap_tff.clip_rules.QuantileEma(timing='previous', initial_clip=1.0)
  factories = {
    'mean': tff.aggregators.UnweightedMeanFactory(),
    'TFF fixed clip': tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, float(clients), 1.0),
    'TFF adaptive clip': tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(0.1, float(clients)),
    'QuAP': quap_tff.QuapAggregationFactory(quap_tff.QuapConfig(num_clients=clients)),
    'QuAP, last clip': quap_tff.QuapAggregationFactory(quap_tff.QuapConfig(num_clients=clients, clip=last_clip)),
  }
  rows = []
  with runtime.activate():
    for label, shapes in _WEIGHT_SHAPES.items():
      value_type = tff.to_type([(np.float32, shape) for shape in shapes])
      values = [[tf.random.normal(shape) for shape in shapes] for _ in range(clients)]
      run_round, seconds = {}, collections.defaultdict(list)
      for name, factory in factories.items():
        if isinstance(factory, tff.aggregators.WeightedAggregationFactory):
          run_round[name] = _round_of(factory.create(value_type, tff.to_type(np.int64)), values, range(clients))
        else:
          run_round[name] = _round_of(factory.create(value_type), values)
        run_round[name]()
      for _ in range(rounds):
        for name, run in run_round.items():
          seconds[name].append(_seconds(run))
      rows += [{'kind': name, 'weights': label, 'ms': 1000 * statistics.median(s)} for name, s in seconds.items()]
  return rows


def growth(
  cohorts: list[int], populations: list[int], examples: int, batch_size: int, rounds: int
) -> list[dict[str, Any]]:
  """The time of a QuAP round by cohort size (population of the largest cohort), and by population (smallest cohort)."""
  rows = []
  with runtime.activate():
    sizes = [(max(cohorts), cohort) for cohort in cohorts] + [(population, min(cohorts)) for population in populations]
    for population, cohort in sizes:
      run_round = _round_of(_quap_process(population, batch_size), _whole(_random_clients(cohort, examples)))
      seconds = statistics.median(_time_rounds(run_round, rounds))
      sizes_of_row = {'population': population, 'cohort': cohort}
      rows.append({**sizes_of_row, 'seconds_per_round': seconds, 'ms_per_client': 1000 * seconds / cohort})
  return rows


def memory(rounds: list[int]) -> list[dict[str, Any]]:
  """Memory of the process after the given rounds of QuAP, with cohorts of 5 to 40 clients of 5 to 40 examples."""
  rng = np.random.default_rng(0)
  rows = []
  with runtime.activate():
    process = _quap_process(100, 32)
    state = process.initialize()
    for round_num in range(1, max(rounds) + 1):
      ids = rng.choice(100, rng.integers(5, 41), replace=False)
      data = [_client(int(i), rng.random((rng.integers(5, 41), *_INPUT_SHAPE), np.float32)) for i in ids]
      state = process.next(state, data).state
      if round_num in rounds:
        rows.append({'round': round_num, 'mib': psutil.Process().memory_info().rss / 2**20})
  return rows


def first_round(clients: int, examples: int, batch_size: int) -> dict[str, float]:
  """Seconds from the imports to the end of the first QuAP round, and how many of them are not the round's own steps."""
  data = _random_clients(clients, examples)
  begin = time.perf_counter()
  with runtime.activate():
    run_round = _round_of(_quap_process(clients, batch_size), _whole(data))
    run_round()
    until_end = time.perf_counter() - begin
    later = _time_rounds(run_round, 2)
  return {'until_end': until_end, 'overhead': until_end - statistics.median(later)}


def _seconds(run_round: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
  begin = clock()
  run_round()
  return clock() - begin


def _time_rounds(
  run_round: Callable[[], Any], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
  run_round()
  return [_seconds(run_round, clock) for _ in range(rounds)]


def _speed(examples: int, seconds: list[float]) -> dict[str, float]:
  round_seconds = statistics.median(seconds)
  return {'samples_per_second': examples / round_seconds, 'seconds_per_round': round_seconds}


def _round_of(process: Any, *arguments: Any) -> Callable[[], None]:
  state = process.initialize()

  def run_round() -> None:
    nonlocal state
    state = process.next(state, *arguments).state

  return run_round


def _random_clients(clients: int, examples: int):
  return [collections.OrderedDict(zip('xy', _random_examples(i, examples))) for i in range(clients)]


def _random_examples(seed, examples, shape=_INPUT_SHAPE):
  rng = np.random.default_rng(seed)
  return rng.random((examples, *shape), np.float32), rng.integers(0, _CLASSES, examples, np.int32)


def _whole(data):
  return [_client(i, client['x'], client['y']) for i, client in enumerate(data)]


def _client(index, x, y=None):
  y = np.zeros(len(x), np.int32) if y is None else y
  return collections.OrderedDict(client_id=[np.int64(index)], examples=[collections.OrderedDict(x=x, y=y)])


def _batched(data, batch_size):
  return [tf.data.Dataset.from_tensor_slices(client).shuffle(len(client['y'])).batch(batch_size) for client in data]


def _stock_process(clients):
  return tff.learning.algorithms.build_unweighted_fed_avg(
    models.build_model_fn(_MODEL, _INPUT_SHAPE, _CLASSES),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    model_aggregator=tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, float(clients), 1.0),
  )


def _quap_process(
  population,
  batch_size,
  compute_dtype='float32',
  clip=quap_tff.clip_rules.QuantileEma(),
  model=_MODEL,
  input_shape=_INPUT_SHAPE,
):
  return quap_tff.build_quap_fed_avg(
    models.build_model_fn(model, input_shape, _CLASSES, compute_dtype),
    quap_tff.QuapConfig(num_clients=population, clip=clip),
    client_optimizer=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    client_work=quap_tff.ClientWorkConfig(batch_size=batch_size),
  )


def _ceiling_round(data, batch_size, device, compute_dtype):
  """All clients' steps in bare TensorFlow: shuffle, gather, gradient, update; a model and a thread for each core."""
  config = runtime.RuntimeConfig(device=device)
  devices = runtime.prepare(config)
  threads = config.resolved_num_threads()
  workers = [_BareWorker(devices[i % len(devices)], batch_size, compute_dtype) for i in range(threads)]
  pool = concurrent.futures.ThreadPoolExecutor(threads)
  start = [np.asarray(v) for v in workers[0].variables]

  def run_worker(index):
    for client in data[index::threads]:
      workers[index].train(start, client['x'], client['y'])

  return lambda: list(pool.map(run_worker, range(threads)))


class _BareWorker:
  """One model of Keras' own layers, trained on one client after another.

  In bfloat16, it is Keras' mixed precision: weights, logits, loss and updates are float32.
  """

  def __init__(self, device: str, batch_size: int, compute_dtype: str):
    self._device = device
    with tf.device(device):
      model = saving.with_stock_layers(models.build_keras_model(_MODEL, _INPUT_SHAPE, _CLASSES, compute_dtype))
    self.variables = model.trainable_variables

    @tf.function(input_signature=[tf.TensorSpec((None, *_INPUT_SHAPE)), tf.TensorSpec((None,), tf.int32)])
    def run_steps(x, y):
      count = tf.shape(y)[0]
      order = tf.random.shuffle(tf.range(count))

      def step(begin):
        rows = order[begin : tf.minimum(begin + batch_size, count)]
        with tf.GradientTape() as tape:
          logits = model(tf.gather(x, rows), training=True)
          loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.gather(y, rows), logits))
        for variable, gradient in zip(self.variables, tape.gradient(loss, self.variables)):
          variable.assign_sub(_LEARNING_RATE * gradient)
        return begin + batch_size

      tf.while_loop(lambda begin: begin < count, step, [tf.constant(0)], parallel_iterations=1)

    self._run_steps = run_steps.get_concrete_function()

  def train(self, start: Sequence[np.ndarray], x: np.ndarray, y: np.ndarray) -> None:
    with tf.device(self._device):
      for variable, value in zip(self.variables, start):
        variable.assign(value)
      self._run_steps(x, y)


def main(argv: list[str]) -> int:
  """Runs the function `argv[1]` of this module with the arguments `argv[2]`; returns the exit status."""
  try:
    print(json.dumps(globals()[argv[1]](**json.loads(argv[2]))), flush=True)
  except runtime.RuntimeStackError as error:
    print(f'Error: {error}', file=sys.stderr)
    return command_line.FAILED
  return 0


if __name__ == '__main__':
  command_line.use_own_temporary_folder()
  sys.exit(command_line.status_of(main, sys.argv))
