r"""Attacks the releases of methods, and reports what the attacks find out.

    python -m experiments.attack --flagfile=experiments/presets/digits_attack.flags
    python -m experiments.attack --dataset=mnist --data_dir=… --methods=quap --batches=1 --output_dir=runs/attack

The parts are:

  inversion   images of clients from one round: DLG, iDLG, Geiping et al. 2020, or in closed form for a Dense layer
  membership  whose data a model was trained on: loss threshold, shadow models, LiRA, by client and by example

Two observers look. client_update sees what one client sends: its clipped update, without noise unless clients add noise
themselves. aggregate sees what a round releases. Clipping, noise and budgets are those of the dataset's presets.

With --output_dir, attack.json, attack.html, and a folder with tables and pictures for each part are written. Progress
goes to standard error. The last line of standard output is one JSON object. Exit status: 0, 1 for a wrong flag or a
failure, 130 when interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import os
import shutil
import sys
import time
from typing import Any, Callable, NamedTuple, TYPE_CHECKING

from absl import flags

from data import reading
from experiments.attacking import inversion_study
from experiments.attacking import result as result_lib
from experiments.command import command_line
from experiments.command import interrupts
from experiments.reporting import pages
from quap_tff.common import checks
from quap_tff.common import files
from quap_tff.common import flag_fields
from quap_tff.common import json_types
from quap_tff.common import lazy
from quap_tff.common import registry
from quap_tff.common.lazy import tf
from quap_tff.common.numbers import rounding

if TYPE_CHECKING:
  from experiments.attacking.membership_study import MembershipSettings

# It loads TensorFlow.
membership_study = lazy.module('experiments.attacking.membership_study')

# The parts that the JSON always holds; a part that did not run is an empty list.
_JSON_PARTS = ('inversion', 'membership')
# Datasets for which there is a study of membership.
_MEMBERSHIP = ('digits', 'mnist')
# Datasets with a file, which has their name.
_FILES = ('mnist', 'cifar10')
_JSON, _PAGE = 'attack.json', 'attack.html'

_FLAGS = command_line.new_flags()
_PARTS = flags.DEFINE_list(
  'parts', ['inversion'], 'Which attacks run: inversion, membership, or both.', flag_values=_FLAGS
)
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir',
  None,
  'Folder for tables and pictures: new, empty, or of an earlier attack. Default: nothing is saved.',
  flag_values=_FLAGS,
)
_MEMBERSHIP_MODELS = flags.DEFINE_integer(
  'membership_models',
  None,
  'Models of each method and level in the study of membership. Each is attacked with the others as shadow models. '
  'Default: 8 for digits, 32 for mnist.',
  flag_values=_FLAGS,
)


def _define_flags() -> None:
  """A flag for each field of `InversionSettings`, with the field's default, and its description as help."""
  helps = flag_fields.helps(inversion_study.InversionSettings)
  for field in dataclasses.fields(inversion_study.InversionSettings):
    define = {tuple: flags.DEFINE_list, int: flags.DEFINE_integer, float: flags.DEFINE_float}.get(
      type(field.default), flags.DEFINE_string
    )
    default: checks.Unchecked = field.default
    default = list(map(str, default)) if define is flags.DEFINE_list else default
    define(field.name, default, helps[field.name], flag_values=_FLAGS)


_define_flags()


class Part(NamedTuple):
  """A study. `settings` makes its settings from the flags, and `run` takes them and a function that says a line."""

  title: str
  settings: Callable[[], Any]
  run: Callable[[Any, Callable[[str], None]], result_lib.StudyResult]


def _inversion_settings() -> inversion_study.InversionSettings:
  values = {field.name: _FLAGS[field.name].value for field in dataclasses.fields(inversion_study.InversionSettings)}
  given = {}
  for name, value in values.items():
    given[name] = tuple(value) if isinstance(value, list) else value
  for name in ('batches', 'steps'):
    try:
      given[name] = tuple(map(int, given[name]))
    except ValueError:
      texts = ','.join(given[name])
      raise ValueError(f'--{name} must be whole numbers with commas between them, found {texts!r}.') from None
  return inversion_study.InversionSettings(**given)


def _membership_settings() -> MembershipSettings:
  if _FLAGS.dataset not in _MEMBERSHIP:
    raise ValueError(
      f'--parts=membership: there is no study of membership for dataset {_FLAGS.dataset!r}. Use one of '
      f'{", ".join(_MEMBERSHIP)}, or --parts=inversion.'
    )
  chosen = {}
  if _FLAGS.dataset == 'mnist':
    chosen.update(membership_study.MNIST)
  if _MEMBERSHIP_MODELS.value is not None:
    chosen['models'] = _MEMBERSHIP_MODELS.value
  return membership_study.MembershipSettings(**chosen, data_dir=_FLAGS.data_dir, seed=_FLAGS.seed)


PARTS: dict[str, Part] = {
  # First, because it activates a runtime, and TensorFlow accepts a runtime's settings only before its first use.
  'membership': Part('Membership inference', _membership_settings, lambda *given: membership_study.run(*given)),
  'inversion': Part('Gradient inversion', _inversion_settings, inversion_study.run),
}


def _check_data() -> None:
  """Checks that the dataset's file is there, before TensorFlow is loaded. Datasets without a file need no check."""
  if _FLAGS.data_dir is not None and _FLAGS.dataset in _FILES:
    name = f'{_FLAGS.dataset}.npz'
    reading.check_is_file(os.path.join(_FLAGS.data_dir, name), f'expected {name} in --data_dir')


def _write(folder: str, results: Mapping[str, result_lib.StudyResult], summary: json_types.JsonView) -> None:
  os.makedirs(folder, exist_ok=True)
  sections, pictures = [], {}
  for name, result in results.items():
    study_folder = os.path.join(folder, name)
    shutil.rmtree(study_folder, ignore_errors=True)
    drawn = result.write_files(study_folder)
    pictures.update(drawn)
    table = pages.Table(name, f'All figures ({name}/)', [_rounded_row(row) for row in result.rows])
    figures = [
      pages.Plot(file, file[: -len('.png')].replace('_', ' '), result.captions.get(file, ''), None)
      for file in sorted(drawn)
    ]
    sections.append(pages.Section(PARTS[name].title, [*result.notes, table, *figures]))
  first = pages.Section(
    'What the attacks found out',
    [
      'Every figure here was measured on the data and methods that are named with it. A failed attack proves '
      'nothing: a better one may succeed. A successful one shows that what was attacked gives the data away.'
    ],
  )
  files.write(os.path.join(folder, _PAGE), pages.page([first, *sections], pictures))
  files.write_json(os.path.join(folder, _JSON), summary)


def _rounded_row(row: json_types.JsonView) -> json_types.JsonObject:
  """A row in print: three digits, and four of an upper bound (an ε, or the most that an attack can reach)."""

  def shown(key: str, value: json_types.Json) -> json_types.Json:
    if value is None:
      return '-'  # So that a column without any value is not left out.
    if not isinstance(value, float):
      return value
    return rounding.up(value) if key.endswith(('epsilon', '_bound')) else f'{value:.3g}'

  return {key: shown(key, value) for key, value in row.items()}


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


def _run_parts(settings: json_types.JsonView) -> json_types.JsonObject:
  begin = time.monotonic()
  results = {name: PARTS[name].run(own, _say) for name, own in settings.items()}
  summary: json_types.JsonObject = {}
  for name in _JSON_PARTS:
    summary[name] = results[name].rows if name in results else []
  summary['seconds'] = round(time.monotonic() - begin, 1)
  if _OUTPUT_DIR.value is not None:
    with interrupts.held_back():
      _write(_OUTPUT_DIR.value, results, summary)
    _say(f'Written: {os.path.join(_OUTPUT_DIR.value, _PAGE)}')
  return summary


def main(argv: list[str]) -> int:
  """Attacks as the flags in `argv[1:]` say; returns the exit status."""
  command_line.refuse_arguments(command_line.parse(_FLAGS, argv, __doc__))
  if not _PARTS.value:
    raise ValueError(f'--parts is empty: give some of {", ".join(PARTS)}.')
  for name in _PARTS.value:
    registry.lookup('part', name, PARTS)
  settings = {name: PARTS[name].settings() for name in PARTS if name in _PARTS.value}
  _check_data()
  if _OUTPUT_DIR.value is not None:
    pages.check_folder(_OUTPUT_DIR.value, _JSON, 'attack')
  lazy.load('experiments.attacking.membership_study')
  tf.get_logger().setLevel('ERROR')  # Attacks of many shapes are traced many times, which TensorFlow warns about.
  interrupts.install()
  try:
    summary = _run_parts(settings)
  except (Exception, KeyboardInterrupt) as error:  # pylint: disable=broad-except
    if not interrupts.is_interrupt(error):
      raise
    print('\nInterrupted; nothing was written.', file=sys.stderr)
    return command_line.INTERRUPTED
  print(json.dumps(summary, allow_nan=False), flush=True)
  return 0


if __name__ == '__main__':
  command_line.run(main)
