"""Runs in order: those of one setting form a group, which differs from other groups in some flags, and in no seed."""

import collections
import dataclasses
import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from experiments.reporting import methods
from experiments.reporting import quantities
from experiments.reporting import runs as runs_lib
from experiments.reporting import specs

# Repetitions of one setting differ in these; where a run lies does not matter.
_REPEATED = ('seed', 'noise_seed', 'output_dir', 'data_dir', 'tuning')
_ABSENT = 'absent'


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs of one setting, one for each seed.

  Attributes:
    setting: Every flag that says what is computed, without the seeds; and `stop_at_accuracy`, which decides where a
      run ends.
    runs: At least one, by seed.
    departures: The flags in which it is not the common setting of its dataset, with its values.
  """

  setting: Mapping[str, Any]
  runs: Tuple[runs_lib.Run, ...]
  departures: Mapping[str, Any]

  @property
  def algorithm(self) -> str:
    return self.setting['algorithm']

  @property
  def method(self) -> str:
    return specs.parse(self.algorithm)[0]

  @property
  def scenario(self) -> Optional[str]:
    """The documents' participation scenario: 'uniform', 'heterogeneous', 'extreme', or None for another."""
    participation = self.setting.get('participation') or ''
    name = specs.parse(participation)[0]
    if name in ('beta', 'beta_bernoulli') and participation.endswith(':a=2,b=5'):
      return 'heterogeneous'
    return {'uniform': 'uniform', 'bernoulli': 'uniform', 'extreme_imbalance': 'extreme'}.get(name)

  def label(self, *told: str) -> str:
    """Where it departs from the common setting, apart from the flags `told` elsewhere; '' if nowhere."""
    return ', '.join(f'{name}={value}' for name, value in self.departures.items() if name not in told)

  @property
  def seeds_text(self) -> str:
    return f'{len(self.runs)} ({", ".join(str(run.seed) for run in self.runs)})'

  @property
  def rounds_text(self) -> str:
    """Rounds run of planned; whoever stopped before is marked."""
    rounds = ', '.join(str(r) for r in sorted({run.rounds for run in self.runs}))
    text = f'{rounds} of {self.runs[0].planned_rounds}'
    if self.setting.get('stop_at_accuracy') is not None:
      return f'{text} (stops at accuracy {self.setting["stop_at_accuracy"]:g})'
    if not all(run.ended for run in self.runs):
      return f'{text} (unfinished)'
    return text if self.runs[0].rounds == self.runs[0].planned_rounds else f'{text} (stopped early)'

  def measure(
      self, value: Callable[[runs_lib.Run], Optional[float]], digits: int = 2
  ) -> Optional[quantities.Quantity]:
    """A figure of each run, as mean and deviation over the seeds that have it; None if none has."""
    return quantities.over([value(run) for run in self.runs], digits)

  def accuracy(self) -> quantities.Quantity:
    """Final test accuracy in percent."""
    return self.measure(lambda run: 100 * run.test_accuracy)


class Family(NamedTuple):
  """Groups that differ along some axes only.

  Attributes:
    label: Where they depart from the common setting besides those axes and the dataset, '' if nowhere.
    setting: The flags that they share.
    groups: In the order of the study.
  """

  label: str
  setting: Mapping[str, Any]
  groups: Tuple[Group, ...]

  @property
  def title(self) -> str:
    """Dataset and departures."""
    return ', '.join(filter(None, (str(self.setting.get('dataset')), self.label)))


@dataclasses.dataclass(frozen=True)
class Study:
  """All groups of a report, in the order of their folders; `common`: each flag's most frequent value, by dataset."""

  groups: Tuple[Group, ...]
  common: Mapping[Any, Mapping[str, Any]]

  @property
  def runs(self) -> List[runs_lib.Run]:
    return [run for group in self.groups for run in group.runs]

  def select(self, method: Optional[str] = None, scenario: Optional[str] = None, **flags) -> List[Group]:
    """Groups of a method and scenario with these flags."""
    return [
        group for group in self.groups
        if method in (None, group.method) and scenario in (None, group.scenario)
        and all(group.setting.get(name) == specs.canonical(name, value) for name, value in flags.items())
    ]

  def families(self, axes: Sequence[str], groups: Optional[Iterable[Group]] = None, at_least: int = 1) -> List[Family]:
    """Groups that differ in `axes` only, put together; families of fewer than `at_least` groups are left out."""
    members: Dict[str, List[Group]] = {}
    for group in self.groups if groups is None else groups:
      members.setdefault(_key({k: v for k, v in group.setting.items() if k not in axes}), []).append(group)
    return [
        Family(
            found[0].label('dataset', *axes),
            {k: v for k, v in found[0].setting.items() if k not in axes},
            tuple(sorted(found, key=lambda group: methods.order(group.algorithm))),
        )
        for found in members.values() if len(found) >= at_least
    ]

  def places(self, groups: Iterable[Group]) -> List[Family]:
    """Methods side by side: for each dataset and participation the setting in which most methods were run."""
    places: Dict[Any, List[Family]] = {}
    for family in self.families(('algorithm',), groups):
      places.setdefault((family.setting.get('dataset'), family.setting.get('participation')), []).append(family)
    return [max(found, key=lambda family: (len(family.groups), -len(family.label))) for found in places.values()]


def collect(runs: Iterable[runs_lib.Run]) -> Tuple[Study, List[runs_lib.LeftOut]]:
  """Groups runs by setting.

  A group compares like with like: a second run of a seed, and runs that went less far than others of their setting, are
  left out by name.
  """
  members: Dict[str, List[runs_lib.Run]] = {}
  for run in runs:
    members.setdefault(_key(setting_of(run)), []).append(run)
  settings = [setting_of(found[0]) for found in members.values()]
  common = {
      dataset: _most_frequent([setting for setting in settings if setting.get('dataset') == dataset])
      for dataset in dict.fromkeys(setting.get('dataset') for setting in settings)
  }
  groups, left_out = [], []
  for setting, found in zip(settings, members.values()):
    kept: Dict[Any, runs_lib.Run] = {}
    most = max(run.rounds for run in found)
    # A run that stops at its accuracy is as long as that takes.
    may_differ = setting.get('stop_at_accuracy') is not None
    for run in found:
      if run.rounds < most and not may_differ:
        left_out.append(runs_lib.LeftOut(
            run.path, f'{run.rounds} rounds, others of its setting {most}: left out of their mean'
        ))
      elif run.seed in kept:
        left_out.append(runs_lib.LeftOut(
            run.path, f'the setting and seed of {kept[run.seed].path}, which is used'
        ))
      else:
        kept[run.seed] = run
    departures = {
        name: setting.get(name, _ABSENT) for name, value in common[setting.get('dataset')].items()
        if _key(setting.get(name, _ABSENT)) != _key(value)
    }
    groups.append(Group(setting, tuple(sorted(kept.values(), key=lambda run: run.seed)), departures))
  return Study(tuple(groups), common), left_out


def setting_of(run: runs_lib.Run) -> Dict[str, Any]:
  """The flags that say what a run computes, in one form, without its seeds."""
  setting = {k: specs.canonical(k, v) for k, v in run.identity.items() if k not in _REPEATED}
  setting.setdefault('calibration', 'documents')
  # A default may stand for a number that the run itself tells.
  setting.update(algorithm=run.algorithm, num_clients=run.num_clients, stop_at_accuracy=run.stop_at_accuracy)
  return setting


def differing(settings: Sequence[Mapping[str, Any]]) -> List[str]:
  """Flags that do not have one value in all of `settings`."""
  names = sorted({name for setting in settings for name in setting})
  return [name for name in names if len({_key(setting.get(name, _ABSENT)) for setting in settings}) > 1]


def _most_frequent(settings) -> Dict[str, Any]:
  """Each flag's value in most of `settings`; the earlier one of a tie."""
  common = {}
  for name in sorted({name for setting in settings for name in setting}):
    values = [setting.get(name, _ABSENT) for setting in settings]
    keys = [_key(value) for value in values]
    common[name] = values[keys.index(collections.Counter(keys).most_common(1)[0][0])]
  return common


def _key(value) -> str:
  return json.dumps(value, sort_keys=True, default=str)
