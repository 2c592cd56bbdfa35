"""The measurements of `experiments.benchmark`, which runs each in a process of its own, round by round.

python -m experiments.benchmarking.cases MEASUREMENT ARGUMENTS_AS_JSON

A measurement is prepared first. Then standard output gets a line of JSON, a list with the labels of each kind of round,
and one more for each line on standard input. Such a line is the index of a kind. The answer is the round's seconds by
the clock and its CPU seconds, those of all threads of the process. A JSON string in place of a list says what is wrong.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import concurrent.futures
import contextlib
import json
import os
import sys
import time
from typing import Any, Callable, Optional

import numpy as np

from experiments.command import command_line
import quap_tff
from quap_tff.common import array_types
from quap_tff.common import json_types
from quap_tff.common import kernels
from quap_tff.common import lazy
from quap_tff.common.lazy import tf
from quap_tff.common.lazy import tff
from quap_tff.mechanisms.certified import weight_rules
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules

aggregation_lib = lazy.module('quap_tff.federated.aggregation')

models = lazy.module('quap_tff.training.models')
runtime = lazy.module('quap_tff.runtime')

# The papers' MNIST model. Images are random: pixels do not change the time of a step.
_MODEL, _INPUT_SHAPE, _CLASSES = 'mnist_cnn', (28, 28, 1), 10
_LEARNING_RATE = 0.005
_SMALL_SHAPE = (8, 8, 1)  # The shape of the digits.

# The rules for the clipping norm in `cohort`. The first is the default.
_CLIP_RULES: Mapping[str, Callable[[], clip_rules.ClipRule]] = {
  'current': clip_rules.QuantileEma,
  'previous': lambda: clip_rules.QuantileEma(timing='previous', initial_clip=1.0),
  'fixed': clip_rules.Fixed,
  'private_quantile': clip_rules.PrivateQuantile,
}

# Trainable tensors of TFF's own EMNIST baselines: '2nn' with 199,210 weights and 'cnn' with 1,663,370.
_WEIGHT_SHAPES = {
  '0.2M': [(784, 200), (200,), (200, 200), (200,), (200, 10), (10,)],
  '1.7M': [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 512), (512,), (512, 10), (10,)],
}

# The numbers that cases compute with which do nothing but train.
_CEILINGS = {'ceiling': 'float32', 'ceiling_bfloat16': 'bfloat16'}

# A measurement yields its kinds of rounds once: labels, and a function that runs one round.
Round = tuple[dict[str, Any], Callable[[], Any]]
Rounds = Iterator[list[Round]]


def check(device: str) -> Rounds:
  """A label with the kernels that TensorFlow uses; raises `runtime.DeviceError` if there is no such device here."""
  runtime.prepare(runtime.RuntimeConfig(device=device))
  yield [({'kernels': kernels.described()}, lambda: None)]


def case(name: str, clients: int, examples: int, batch_size: int, device: str) -> Rounds:
  """A round of one of the benchmark's cases."""
  data = random_clients(clients, examples)
  if name in _CEILINGS:
    yield [({}, _ceiling_round(data, batch_size, device, _CEILINGS[name]))]
    return
  is_native = name.startswith('tff_worker')
  if name == 'tff_worker' and lazy.ONEDNN_BEFORE is None:
    # The worker inherits the environment, and is measured as TFF comes on a processor with these instructions. The
    # setting is explicit, because TensorFlow does not read ONEDNN_MAX_CPU_ISA when it decides whether oneDNN is on.
    os.environ[lazy.ONEDNN_VARIABLE] = str(int(kernels.starts_onednn()))
  config = runtime.RuntimeConfig(device=device)
  if is_native:
    config = runtime.RuntimeConfig(kind='native', device='cpu')
  with runtime.activate(config):
    if name.startswith('tff_'):
      yield [({}, round_of(_stock_process(clients), _batched(data, batch_size)))]
    else:
      process = quap_process(clients, batch_size, compute_dtype=name[len('quap_') :])
      yield [({}, round_of(process, whole(data)))]


def cohort(rule: str, clients: int, examples: int, batch_size: int, rounds: int) -> Rounds:
  """A round with a large cohort, whose data are made as each client's turn comes.

  Args:
    rule: A key of `_CLIP_RULES`, or 'certified'.
    clients: The cohort, which is everybody.
    examples: Examples of each client.
    batch_size: Examples in each local step.
    rounds: How many rounds there are at most.
  """
  with runtime.activate():
    if rule == 'certified':
      config = quap_tff.CertifiedConfig(
        num_clients=clients,
        epsilon=3.0,
        delta=1e-5,
        clip=clip_rules.Fixed(1.0),
        correlation=correlation.Independent(),
        weights=weight_rules.ParticipationWeights(),
      )
      built = quap_tff.Plan.certified(config, [list(range(clients))] * rounds).build_process(
        models.build_model_fn(_MODEL, _INPUT_SHAPE, _CLASSES),
        tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
        client_work=quap_tff.ClientWorkConfig(batch_size=batch_size),
      )
      process = built.process
    else:
      process = quap_process(clients, batch_size, clip=_CLIP_RULES[rule]())
    data = runtime.client_values(lambda i: _client(i, *_random_examples(i, examples)), range(clients))
    yield [({}, round_of(process, data))]


def small(model: str, examples: int, clients: int, batch_size: int, clients_per_call: Optional[int] = None) -> Rounds:
  """A round of clients with little to do. Its CPU time includes the making of datasets.

  Args:
    model: A name that `models.build_model_fn` knows, for images of 8x8 pixels.
    examples: Examples of each client.
    clients: The cohort, which is everybody.
    batch_size: Examples in each local step.
    clients_per_call: See `runtime.RuntimeConfig`.
  """
  examples_of = [_random_examples(i, examples, _SMALL_SHAPE) for i in range(clients)]
  config = runtime.RuntimeConfig(device='cpu', num_threads=1, clients_per_call=clients_per_call)
  with runtime.activate(config):
    process = quap_process(clients, batch_size, model=model, input_shape=_SMALL_SHAPE)
    data = runtime.client_values(lambda i: _client(i, *examples_of[i]), range(clients))
    yield [({}, round_of(process, data))]


def aggregation(clients: int) -> Rounds:
  """One aggregation, by kind and number of weights, in process."""
  last_clip = clip_rules.QuantileEma(timing='previous', initial_clip=1.0)
  factories = {
    'mean': tff.aggregators.UnweightedMeanFactory(),
    'TFF fixed clip': tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, float(clients), 1.0),
    'TFF adaptive clip': tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(0.1, float(clients)),
    'QuAP': aggregation_lib.AggregationFactory(quap_tff.QuapConfig(num_clients=clients)),
    'QuAP, last clip': aggregation_lib.AggregationFactory(quap_tff.QuapConfig(num_clients=clients, clip=last_clip)),
  }
  rounds = []
  with runtime.activate():
    for weights, shapes in _WEIGHT_SHAPES.items():
      value_type = tff.to_type([(np.float32, shape) for shape in shapes])
      values = [list(map(tf.random.normal, shapes)) for _ in range(clients)]
      for kind, factory in factories.items():
        if isinstance(factory, tff.aggregators.WeightedAggregationFactory):
          run_round = round_of(factory.create(value_type, tff.to_type(np.int64)), values, range(clients))
        else:
          run_round = round_of(factory.create(value_type), values)
        rounds.append(({'kind': kind, 'weights': weights}, run_round))
    yield rounds


def growth(cohorts: list[int], populations: list[int], examples: int, batch_size: int) -> Rounds:
  """A QuAP round by cohort size (population of the largest cohort), and by population (smallest cohort)."""
  rounds = []
  with runtime.activate():
    sizes = [(max(cohorts), cohort) for cohort in cohorts] + [(population, min(cohorts)) for population in populations]
    for population, cohort in sizes:
      run_round = round_of(quap_process(population, batch_size), whole(random_clients(cohort, examples)))
      rounds.append(({'population': population, 'cohort': cohort}, run_round))
    yield rounds


def memory() -> Rounds:
  """A round of QuAP, with a cohort of 5 to 40 clients of 5 to 40 examples."""
  rng = np.random.default_rng(0)
  with runtime.activate():
    process = quap_process(100, 32)
    state = process.initialize()

    def run_round() -> None:
      nonlocal state
      ids = rng.choice(100, rng.integers(5, 41), replace=False)
      images = [rng.random((rng.integers(5, 41), *_INPUT_SHAPE), np.float32) for _ in ids]
      state = process.next(state, [_client(i, x, np.zeros(len(x), np.int32)) for i, x in zip(ids, images)]).state

    yield [({}, run_round)]


def round_of(process: tff.learning.templates.LearningProcess, *arguments: array_types.Structure) -> Callable[[], None]:
  """A function that runs the next round of a process, each with these arguments."""
  state = process.initialize()

  def run_round() -> None:
    nonlocal state
    state = process.next(state, *arguments).state

  return run_round


def random_clients(clients: int, examples: int) -> list[array_types.Structure]:
  """Each client's examples, `x` and `y`."""
  return [collections.OrderedDict(zip('xy', _random_examples(i, examples))) for i in range(clients)]


def _random_examples(seed: int, examples: int, shape: Sequence[int] = _INPUT_SHAPE) -> tuple[np.ndarray, np.ndarray]:
  rng = np.random.default_rng(seed)
  return rng.random((examples, *shape), np.float32), rng.integers(0, _CLASSES, examples, np.int32)


def whole(data: Sequence[array_types.Structure]) -> list[array_types.Structure]:
  """The clients of `random_clients` as a learning process of this project takes them."""
  return [_client(i, client['x'], client['y']) for i, client in enumerate(data)]


def _client(index: int, x: np.ndarray, y: np.ndarray) -> array_types.Structure:
  return collections.OrderedDict(client_id=[np.int64(index)], examples=[collections.OrderedDict(x=x, y=y)])


def _batched(data: Sequence[array_types.Structure], batch_size: int) -> 'list[tf.data.Dataset]':
  return [tf.data.Dataset.from_tensor_slices(client).shuffle(len(client['y'])).batch(batch_size) for client in data]


def _stock_process(clients: int) -> 'tff.learning.templates.LearningProcess':
  return tff.learning.algorithms.build_unweighted_fed_avg(
    models.build_model_fn(_MODEL, _INPUT_SHAPE, _CLASSES),
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    model_aggregator=tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.1, float(clients), 1.0),
  )


def quap_process(
  population: int,
  batch_size: int,
  compute_dtype: str = 'float32',
  clip: clip_rules.ClipRule = clip_rules.QuantileEma(),
  model: str = _MODEL,
  input_shape: tuple[int, ...] = _INPUT_SHAPE,
) -> tff.learning.templates.LearningProcess:
  """QuAP-FL's learning process with the default noise."""
  plan = quap_tff.Plan(quap_tff.QuapConfig(num_clients=population, clip=clip))
  built = plan.build_process(
    models.build_model_fn(model, input_shape, _CLASSES, compute_dtype),
    client_optimizer=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
    client_work=quap_tff.ClientWorkConfig(batch_size=batch_size),
  )
  return built.process


def _ceiling_round(
  data: Sequence[array_types.Structure], batch_size: int, device: str, compute_dtype: str
) -> Callable[[], list[None]]:
  """All clients' steps in bare TensorFlow: shuffle, gather, gradient, update; a model and a thread for each core."""
  config = runtime.RuntimeConfig(device=device)
  devices = runtime.prepare(config)
  threads = config.resolved_num_threads()
  workers = [_BareWorker(devices[i % len(devices)], batch_size, compute_dtype) for i in range(threads)]
  pool = concurrent.futures.ThreadPoolExecutor(threads)
  start = [np.asarray(v) for v in workers[0].variables]

  def run_worker(index: int) -> None:
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
      model = models.with_stock_layers(models.build_keras_model(_MODEL, _INPUT_SHAPE, _CLASSES, compute_dtype))
    self.variables = model.trainable_variables

    @tf.function(input_signature=[tf.TensorSpec((None, *_INPUT_SHAPE)), tf.TensorSpec((None,), tf.int32)])
    def run_steps(x: 'tf.Tensor', y: 'tf.Tensor') -> None:
      count = tf.shape(y)[0]
      order = tf.random.shuffle(tf.range(count))

      def step(begin: 'tf.Tensor') -> 'tf.Tensor':
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
  """Serves the measurement `argv[1]`, given the arguments `argv[2]`; returns the exit status."""
  # What packages print goes elsewhere.
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

  def answer(what: json_types.Json) -> None:
    print(json.dumps(what), file=answers, flush=True)

  try:
    with contextlib.contextmanager(globals()[argv[1]])(**json.loads(argv[2])) as rounds:
      answer([labels for labels, _ in rounds])
      for line in sys.stdin:
        run_round = rounds[int(line)][1]
        begin, cpu_begin = time.perf_counter(), time.process_time()
        run_round()
        answer([time.perf_counter() - begin, time.process_time() - cpu_begin])
  except (ValueError, OSError, MemoryError, lazy.MissingPackageError, runtime.RuntimeStackError) as error:
    answer(command_line.error_text(error) or type(error).__name__)
    return command_line.FAILED
  return 0


if __name__ == '__main__':
  command_line.use_own_temporary_folder()
  sys.exit(main(sys.argv))
