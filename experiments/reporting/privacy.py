"""What a run's privacy figures may be called: a formal ε is the released model's only if the run says so itself."""

from typing import Any, Mapping, Optional

from experiments.reporting import quantities
from experiments.reporting import runs as runs_lib
from experiments.reporting import study as study_lib

NO_FINITE = 'no finite ε for the released model'
_NO_AMPLIFICATION = 'none'


def released_figure(run: runs_lib.Run) -> Optional[Mapping[str, Any]]:
  """The smallest formal figure, of those without amplification if there are any, that holds for the released model."""
  return _smallest(run) if _covers(run) == 'released model' and run.summary.get('model_protected') is True else None


def certified_epsilon(run: runs_lib.Run) -> Optional[float]:
  """The largest ε of any client by the run's certificate, or None if it has none."""
  achieved = (run.certificate or {}).get('achieved')
  return _number(achieved.get('epsilon_max')) if isinstance(achieved, dict) else None


def whole_model_epsilon(run: runs_lib.Run) -> Optional[float]:
  """The largest ε of any client that holds for the released model: the certificate's, or the formal one."""
  if run.certificate is not None:
    return certified_epsilon(run)
  figure = released_figure(run)
  return figure['epsilon_max'] if figure is not None else None


def formal_text(group: study_lib.Group) -> str:
  """The formal figure of a setting with what it covers, in one cell; the largest over the seeds."""
  if all(certified_epsilon(run) is not None for run in group.runs):
    largest = max(certified_epsilon(run) for run in group.runs)
    return f'released model: ε = {largest:.3g} at total δ = {group.setting["delta"]:g} (certificate.json)'
  if all(released_figure(run) is not None for run in group.runs):
    return f'released model: {_figure_text(group.runs)}'
  if all(_covers(run) == 'weights without the logs' and _smallest(run) is not None for run in group.runs):
    return f'weights only, if the logs stay secret: {_figure_text(group.runs)}'
  return NO_FINITE


def nominal(group: study_lib.Group, which: str) -> Optional[quantities.Quantity]:
  """Nominal ε over clients, `which` is 'max' or 'mean'; None where the noise is not that of the nominal budgets."""
  return group.measure(lambda run: _nominal(run, f'nominal_epsilon_{which}'), 3)


def _nominal(run, name) -> Optional[float]:
  if not run.has_nominal:
    return None
  if run.summary:
    return run.summary.get(name)
  _, values = run.curve(name)
  return float(values[-1]) if len(values) else None


def _formal(run) -> Mapping[str, Any]:
  formal = run.summary.get('formal')
  return formal if isinstance(formal, dict) else {}


def _covers(run) -> Optional[str]:
  return _formal(run).get('covers')


def _smallest(run) -> Optional[Mapping[str, Any]]:
  figures = _formal(run).get('figures')
  figures = [f for f in figures if _number(f.get('epsilon_max')) is not None] if isinstance(figures, list) else []
  figures = [f for f in figures if f.get('amplification') == _NO_AMPLIFICATION] or figures
  return min(figures, key=lambda figure: figure['epsilon_max'], default=None)


def relations(study: study_lib.Study) -> str:
  """A sentence on whose privacy the formal figures are, and against which neighbours."""
  found = [(run, _smallest(run)) for run in study.runs]
  units = dict.fromkeys(str(_formal(run).get('unit')) for run, figure in found if figure)
  neighbours = dict.fromkeys(str(figure.get('neighbours')) for _, figure in found if figure)
  if not units:
    return 'No run has a formal figure.'
  return f'Formal figures: unit: {" or ".join(units)}; neighbouring relation: {" or ".join(neighbours)}.'


def _number(value) -> Optional[float]:
  return float(value) if isinstance(value, (int, float)) else None


def _figure_text(runs) -> str:
  run = max(runs, key=lambda run: _smallest(run)['epsilon_max'])
  figure = _smallest(run)
  amplification = figure.get('amplification')
  amplified = 'no amplification' if amplification == _NO_AMPLIFICATION else f'amplification: {amplification}'
  return (
      f'ε = {figure["epsilon_max"]:.3g} at total δ = {_formal(run).get("delta", float("nan")):g} '
      f'({figure.get("accountant")}, {amplified})'
  )
