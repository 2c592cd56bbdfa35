"""Figures that are drawn from a report's tables are those that the report itself would have."""

import numpy as np
import pytest

from experiments import plots
from experiments.reporting import figures
from experiments.reporting import redraw

_CERTIFIED = """participation,epsilon,method,setting,accuracy (%),"accuracy (%), deviation",seeds
beta,3,Certified QuAP-FL,,90.5,0.5,2 (1; 2)
beta,3,TFF DP-FTRL,averaging=tail,80.0,,1 (1)
uniform,3,Certified QuAP-FL,,95.0,0.25,2 (1; 2)
uniform,1,Certified QuAP-FL,,70.0,,1 (1)
"""
_ALPHA_BETA = """α,β,measured: accuracy (%)
0.3,1,96.0
0.3,2,97.0
"""


@pytest.fixture(name='drawn')
def _drawn(tmp_path, monkeypatch):
  """Draws a table, and returns what is in the figures, by their files' names."""
  found, png = [], plots.png

  def keep(draw, size):
    found.append(plots.drawn(draw, size))
    return png(draw, size)

  monkeypatch.setattr(plots, 'png', keep)

  def draw(name, text):
    for folder in ('tables', 'figures'):
      (tmp_path / folder).mkdir()
    (tmp_path / 'tables' / f'{name}.csv').write_text(text)
    redraw.main(str(tmp_path / 'tables' / f'{name}.csv'), 'A title')
    return dict(zip(sorted(path.name for path in (tmp_path / 'figures').iterdir()), reversed(found)))

  return draw


def test_certified_runs_have_panels_for_an_epsilon_and_lines_over_epsilon(drawn):
  found = drawn('certified', _CERTIFIED)
  assert list(found) == ['certified_by_epsilon_1.png', 'certified_epsilon_3.png']
  lines, panels = found.values()
  assert panels.get_suptitle() == 'A title, ε = 3' and lines.get_suptitle() == 'A title, by ε: participation=uniform'
  beta, uniform = panels.axes
  assert [axes.get_title('left') for axes in panels.axes] == ['beta', 'uniform']
  assert [text.get_text() for text in beta.texts] == ['90.50 ± 0.50', '80.00']
  assert [text.get_text() for text in uniform.texts] == ['95.00 ± 0.25']
  (line,) = (line for line in lines.axes[0].get_lines() if len(line.get_xdata()) == 2 and line.get_marker() != '_')
  np.testing.assert_array_equal([line.get_xdata(), line.get_ydata()], [[1, 3], [70, 95]])
  assert line.get_color() == beta.get_lines()[0].get_color() == figures.looks([figures.Series(0, '')])['']['color']


def test_the_table_of_alpha_and_beta_is_of_quap(drawn):
  (figure,) = drawn('alpha_beta', _ALPHA_BETA).values()
  assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ['α = 0.3, β = 1', 'α = 0.3, β = 2']
