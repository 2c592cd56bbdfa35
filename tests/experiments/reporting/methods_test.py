"""One look for each method, told apart without colour."""

import itertools

from matplotlib import colors

from experiments.reporting import methods


def _luminance(method):
  return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), colors.to_rgb(method.colour)))


def test_no_two_methods_share_a_marker_or_a_colour():
  for field in ('marker', 'colour', 'label'):
    assert len({getattr(method, field) for method in methods.METHODS.values()}) == len(methods.METHODS)


def test_lines_of_one_dash_differ_in_grey():
  for a, b in itertools.combinations(methods.METHODS.values(), 2):
    assert a.dash != b.dash or abs(_luminance(a) - _luminance(b)) > 0.1, f'{a.label}, {b.label}'


def test_the_ablation_has_all_eight():
  assert len(methods.BY_PARTS) == 8
  assert methods.BY_PARTS[True, True, True] == 'quap'
  assert methods.BY_PARTS[False, False, False] == 'fixed_dp'


def test_parameters_are_in_the_label_only():
  plain, other = methods.of('fixed_dp'), methods.of('fixed_dp:clip=0.5')
  assert other.label == 'Fixed-DP (clip=0.5)'
  assert other._replace(label=plain.label) == plain
  assert methods.of('brand_new').label == 'brand_new'


def test_specs_of_one_method_differ_in_the_fill():
  assert methods.fills(['quap', 'certified', 'certified:weights=uniform']) == {
      'quap': 'full', 'certified': 'full', 'certified:weights=uniform': 'none'
  }
