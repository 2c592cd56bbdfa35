r"""Prints the best clipping norm and client optimizer of each method among tuning runs, one line for each method.

    python -m experiments.reporting.best RUNS…

Runs on one dataset with the same participation and ε are compared. `edge` says that no smaller, or no larger, norm was
tried than the best one.
"""

from experiments import report
from experiments.command import command_line
from experiments.reporting import naming
from experiments.reporting import study

_NORMS = ('clip', 'initial_clip')


def main(argv: list[str]) -> int:
  """Prints the lines for the runs in the folders `argv[1:]`; returns the exit status."""
  methods: dict[tuple[str, ...], list[tuple[float, float, study.StudyGroup]]] = {}
  groups, _ = report.read_groups(argv[1:])
  for group in groups:
    name, values, _ = naming.parse_choice('algorithm', group.algorithm)
    norm = next((float(values.pop(key)) for key in _NORMS if key in values), 0.0)
    key = (group.dataset, str(group.setting['participation']), str(group.setting.get('epsilon')), name, str(values))
    methods.setdefault(key, []).append((group.accuracy().mean, norm, group))
  for (dataset, participation, epsilon, *_), found in methods.items():
    (accuracy, norm, best), *others = sorted(found, key=lambda one: -one[0])
    norms = [one[1] for one in found]
    edge = ' (edge)' if min(norms) < max(norms) and norm in (min(norms), max(norms)) else ''
    pair = f'{best.folders[0].identity["algorithm"]} {best.folders[0].identity["client_optimizer"]}'
    then = ', '.join(f'{one[0]:.2f} at {one[1]:g}' for one in others[:2])
    print(f'{dataset}, {participation}, ε = {epsilon}: {pair}{edge}: {accuracy:.2f}%; then {then or "none"}')
  return 0


if __name__ == '__main__':
  command_line.run(main)
