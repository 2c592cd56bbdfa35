"""What a reader sees on an axis: the texts of its ticks, as drawn."""

import pytest


def _in_view(axis):
  low, high = sorted(axis.get_view_interval())
  margin = 1e-3 * (high - low)
  return [tick for tick in axis.get_major_ticks() if low - margin <= tick.get_loc() <= high + margin]


def numbers(axis) -> list[float]:
  """The numbers at the ticks in view, of a figure that has been drawn. Fails if one is no number."""
  texts = [tick.label1.get_text() for tick in _in_view(axis)]
  return [float(text.replace('\N{MINUS SIGN}', '-')) for text in texts if text]


def check(axis, low: float, high: float):
  """Fails unless the axis holds low to high and its texts are the numbers at which its ticks are."""
  assert axis.get_offset_text().get_text() == ''
  view, shown = sorted(axis.get_view_interval()), numbers(axis)
  assert view[0] <= low and high <= view[1]
  assert len(shown) >= 2 and len(set(shown)) == len(shown)
  assert shown == pytest.approx([tick.get_loc() for tick in _in_view(axis)], rel=0, abs=1e-3 * (view[1] - view[0]))
