"""Bundles of systems: an account that names their classes is written, and read where they are registered."""

import json

import pytest

from experiments.systems import fedvarp
from experiments.systems import local_dp
from experiments.systems import robust
from quap_tff import plans
from quap_tff.bundle import bundle_files
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.mechanisms.quap.config import NoiseConfig
from quap_tff.plans.accounts import options
from tests.quap_tff import examples


def _written(plan):
  texts = bundle_files.texts({}, plan, (), bundle_files.PlannedRounds(), None)
  return json.loads(texts[bundle_files.PLAN])


def _median():
  return plans.Plan(examples.quap(clip=clip_rules.Fixed(1.0), critical_layers='all', aggregator=robust.Median()))


def test_classes_of_a_system_are_written_by_their_names():
  noise = NoiseConfig('client', calibration='analytic')
  config = examples.quap(clip=clip_rules.Fixed(1.0), critical_layers='all', clip_scope='all_layers', noise=noise)
  written = _written(plans.Plan(local_dp.LocalPrivacy(config)))
  assert dict(written['arguments']['dict'])['mechanism']['class'] == 'experiments.systems.local_dp:LocalPrivacy'
  assert 'experiments.systems.robust:Median' in json.dumps(_written(_median()))


def test_a_package_that_was_not_added_is_refused(monkeypatch):
  monkeypatch.setattr(bundle_files, 'PACKAGES', ['quap_tff'])
  with pytest.raises(ValueError, match='Median is not made only of .* the classes of quap_tff'):
    _written(_median())


def test_of_an_extension_an_account_has_what_it_states(monkeypatch):
  monkeypatch.setattr(bundle_files, 'PACKAGES', ['quap_tff'])
  extension = fedvarp.FedVarp('clients')
  config = examples.quap(clip=clip_rules.Fixed(1.0), critical_layers='all')
  written = dict(_written(plans.Plan(config, extension=extension))['arguments']['dict'])['extension']
  assert written['class'] == f'{options.__name__}:StatedExtension'
  fields = written['fields']
  assert (fields['name'], fields['statement']) == ('FedVarp', extension.statement)
  assert fields['exact_releases'] == {'tuple': list(extension.exact_releases)}
