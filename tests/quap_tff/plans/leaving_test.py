"""What leaves the clients of a certified run, for every method around it: read off the computation that would run."""

import collections
import dataclasses

import numpy as np
import pytest

from experiments.systems import feddyn
from experiments.systems import fednova
from experiments.systems import fedvarp
from experiments.systems import fl_fdms
from experiments.systems import safari
from experiments.systems import scaffold
from quap_tff import plans
from quap_tff.common.lazy import tf
from quap_tff.federated import client_work
from quap_tff.mechanisms import sparsity
from quap_tff.mechanisms.noise import correlation
from quap_tff.mechanisms.parts import clip_rules
from quap_tff.plans.accounts import leaving as leavings
from quap_tff.training import extension as extensions
from tests.quap_tff import examples
from tests.quap_tff import linear_model

pytestmark = pytest.mark.slow

_EXAMPLES = collections.OrderedDict(x=np.zeros([4, 1], np.float32), y=np.zeros([4, 1], np.float32))

# An id is public. A sum without a trusted server is that of integers of 64 bits, and of how many clients are in it.
_ID = ('federated_sum', 'client_id', 'int32[5]')
_SUM, _SPARSE_SUM = ('federated_sum', '', 'int32[1,1]'), ('federated_sum', '', 'int32[1]')
_NORMS = (('federated_sum', 'norm', 'float32[5]'),)
_SECURE_SUM = (('federated_secure_modular_sum', '', 'int64[1,1]'), ('federated_secure_modular_sum', '', 'int64'))
# A method that weighs or remembers by who came asks for ids once more. Where a client has a vector of its own, the
# simulation keeps it at the server.
_IDS = (_ID,)
_VECTORS = (
  ('federated_select', '', 'int32[1]'),
  ('federated_aggregate', 'client_id', 'int64'),
  ('federated_aggregate', 'own', 'float32[1]'),
)
# What the server compares with its state.
_OF_GUARDS = (
  _ID,
  ('federated_sum', 'round', 'int64[5]'),
  ('federated_sum', 'last_round', 'int64[5]'),
  ('federated_sum', 'weight', 'float32[5]'),
)

_EXTENSIONS = {
  'none': (None, ()),
  'fednova by epochs': (fednova.FedNova(mean_epochs=2.0), _IDS),
  'fednova by steps': (fednova.FedNova(effective_steps=3.0), _IDS),
  'fedvarp': (fedvarp.FedVarp('released'), _IDS),
  'safari': (safari.Safari(examples=_EXAMPLES), _IDS),
  'feddyn': (feddyn.FedDyn(), _VECTORS),
  'scaffold 1': (scaffold.Scaffold(1, 'released'), _VECTORS),
  'scaffold 2': (scaffold.Scaffold(2, 'released'), _VECTORS),
}
# Others that ask for the same are among them.
_MORE = ('fednova by epochs', 'fednova by steps', 'safari', 'feddyn', 'scaffold 1')
_ARE_REFUSED = [name for name, (_, asked) in _EXTENSIONS.items() if asked == _VECTORS]
_QUANTILE = {'clip': clip_rules.PrivateQuantile(count_stddev=5.0)}
_SERVER = {'fixed clip': ({}, (_ID, _SUM)), 'private quantile': (_QUANTILE, (_ID, *_NORMS, _SUM))}
_SHARES = {'held': correlation.HeldNoise(0.5), 'independent': correlation.HeldNoise(0.0)}


@dataclasses.dataclass(frozen=True)
class _Reports(extensions.Extension):
  """Tells the server each client's exact norm, under any name, and says that it releases nothing."""

  reported: str = 'weight'
  again: str = ''
  is_struct: bool = False

  statement = 'It releases nothing more.'

  exact_releases = ()

  def report(self, message, own, local):
    norm = tf.linalg.global_norm(local.update)
    norm = tf.cast(norm, tf.int64) if 'round' in self.reported or self.reported == 'client_id' else norm
    value = collections.OrderedDict(inner=norm) if self.is_struct else norm
    return collections.OrderedDict({self.reported: value, **({self.again: norm} if self.again else {})})


@dataclasses.dataclass(frozen=True)
class _Mean(extensions.Extension):
  """Releases the mean of exact updates at the server."""

  statement = 'It releases nothing more.'

  def report(self, message, own, local):
    return collections.OrderedDict(update=extensions.flat(local.update))

  def server_step(self, memory, mean, cohort):
    return extensions.unflat(tf.reduce_mean(cohort.reports['update'], axis=0), mean), memory


@dataclasses.dataclass(frozen=True)
class _Denies(_Mean):
  exact_releases = ()


def _thorough(*cases):
  return [pytest.param(*case, marks=pytest.mark.thorough) for case in cases]


@pytest.fixture(autouse=True)
def _undrawn(undrawn):
  """Noise of the server leaves no client, and takes most of what a process is traced for."""


def _plan(extension=None, options=(), **config):
  config = examples.guarantee(**{'clip': clip_rules.Fixed(0.5), **config})
  return plans.Plan.certified(config, examples.SCHEDULE, certificate=False, extension=extension, **dict(options))


def _held(extension=None, options=(), noise='held', **config):
  return _plan(extension, options, correlation=_SHARES[noise], **config)


def _leaving(plan):
  return plan.build_process(linear_model.Linear).leaving


def test_a_plan_is_not_changed_by_its_process():
  plan = _plan()
  before = dict(vars(plan))
  built = plan.build_process(linear_model.Linear)
  assert vars(plan) == before and plan.model is None
  assert built.plan.model is not None and built.plan.fingerprint == plan.fingerprint
  with pytest.raises(dataclasses.FrozenInstanceError):
    built.leaving = ()


def _below(base):
  """The classes below a class."""
  direct = base.__subclasses__()
  return {*direct, *(deeper for one in direct for deeper in _below(one))}


def test_every_extension_is_among_them():
  tested = {type(one) for one, _ in _EXTENSIONS.values() if one is not None}
  known = {one for one in _below(extensions.Extension) if one.__module__.startswith('experiments.systems.')}
  assert known == tested | {fl_fdms.FriendSubstitution}


@pytest.mark.parametrize(
  'name, clip',
  [
    *((name, 'fixed clip') for name in _EXTENSIONS if name not in _MORE),
    *_thorough(*((name, 'fixed clip') for name in _MORE), ('feddyn', 'private quantile')),
    ('none', 'private quantile'),
  ],
)
def test_with_a_trusted_server(name, clip):
  (extension, asked), (config, sent) = _EXTENSIONS[name], _SERVER[clip]
  assert _leaving(_plan(extension, **config)) == (*asked, *sent)


@pytest.mark.thorough
@pytest.mark.parametrize(
  'noise',
  [*_thorough([correlation.Ar1(0.5)], [correlation.Banded(2)]), correlation.Blt()],
  ids=['ar1', 'banded', 'blt'],
)
def test_correlated_noise_changes_nothing(noise):
  assert _leaving(_plan(correlation=noise)) == (_ID, _SUM)


@pytest.mark.parametrize(
  'chosen, clip',
  [(sparsity.RandomMask(0.5), 'private quantile'), *_thorough((sparsity.TopReleased(0.5), 'fixed clip'))],
)
def test_sparse_updates(chosen, clip):
  config, sent = _SERVER[clip]
  assert _leaving(_plan(options=dict(sparsity=chosen), **config)) == (*sent[:-1], _SPARSE_SUM)


def test_what_does_not_go_together():
  chosen = dict(sparsity=sparsity.RandomMask(0.5))
  for make in (lambda: _held(options=chosen), lambda: _plan(feddyn.FedDyn(), chosen)):
    with pytest.raises(ValueError, match='--sparsity'):
      make()
  with pytest.raises(ValueError, match='nobody sees the norms'):
    _held(**_QUANTILE)
  for extension in (
    *(scaffold.Scaffold(2, 'sum'), fednova.FedNova(), fedvarp.FedVarp('clients')),
    fl_fdms.FriendSubstitution(),
  ):
    for make in (_plan, _held):
      with pytest.raises(ValueError, match='A certified run releases noised sums alone'):
        make(extension)


@pytest.mark.parametrize(
  'name, noise',
  [
    *((name, 'held') for name in _EXTENSIONS if name not in (*_ARE_REFUSED, *_MORE)),
    *_thorough(*((name, 'held') for name in _MORE if name not in _ARE_REFUSED), ('none', 'independent')),
  ],
)
def test_without_a_trusted_server(name, noise):
  extension, asked = _EXTENSIONS[name]
  assert _leaving(_held(extension, noise=noise)) == (*asked, *_OF_GUARDS, *_SECURE_SUM)


@pytest.mark.thorough
@pytest.mark.parametrize('noise', ['held', *_thorough(['independent'])])
def test_clients_that_stay_away_change_nothing(noise):
  assert _leaving(_held(noise=noise, dropout=0.3)) == (*_OF_GUARDS, *_SECURE_SUM)


@pytest.fixture
def unseen(monkeypatch):
  """The composer does not look at what an extension reports: what leaves clients is compared all the same."""
  monkeypatch.setattr(client_work, '_check_reports', lambda extension, report_type: None)


class TestRefusals:
  @pytest.mark.parametrize(
    'name, noise',
    [('scaffold 2', 'held'), *_thorough(('feddyn', 'held'), ('scaffold 1', 'held'), ('feddyn', 'independent'))],
  )
  def test_a_vector_of_each_client(self, name, noise):
    extension, _ = _EXTENSIONS[name]
    plan = _held(extension, noise=noise)
    words = rf'Asked for by {type(extension).__name__}: .*own \(float32\[1\], by federated_aggregate\)'
    with pytest.raises(ValueError, match=words) as error:
      plan.build_process(linear_model.Linear)
    assert 'Use trust=server' in str(error.value) and 'client_id' not in str(error.value)

  @pytest.mark.parametrize('name', ['weight', *_thorough(['norm'], ['round'], ['last_round'])])
  def test_a_report_whatever_its_name(self, name, unseen):
    """The mechanism's own report has values of these names and types. A second one is not the mechanism's."""
    plan = _held(_Reports(name))
    with pytest.raises(ValueError, match=rf'Asked for by _Reports: {name} \('):
      plan.build_process(linear_model.Linear)

  @pytest.mark.thorough
  def test_a_report_that_asks_twice(self, unseen):
    with pytest.raises(ValueError, match='Asked for by _Reports: again .* and weight '):
      _held(_Reports('weight', again='again')).build_process(linear_model.Linear)

  def test_a_report_in_a_struct(self):
    with pytest.raises(ValueError, match="reports 'weight', which is not a tensor"):
      _held(_Reports('weight', is_struct=True)).build_process(linear_model.Linear)

  @pytest.mark.parametrize('make', [_plan, _held])
  def test_a_report_under_the_name_of_ids(self, make):
    with pytest.raises(ValueError, match="reports 'client_id', a name that the composer uses"):
      make(_Reports('client_id')).build_process(linear_model.Linear)

  @pytest.mark.parametrize('make', [_plan, _held])
  def test_a_report_counts_as_an_exact_release_unless_there_is_none(self, make):
    with pytest.raises(ValueError, match="with _Mean as configured the server uses clients' reports without noise"):
      make(_Mean())
    with pytest.raises(ValueError, match=r'releases nothing exact \(exact_releases is empty\), but its clients report'):
      make(_Denies()).build_process(linear_model.Linear)

  def test_a_folder_that_lists_a_value_more(self):
    plan = _held(fednova.FedNova(mean_epochs=2.0))
    built = plan.build_process(linear_model.Linear)
    leavings.check_leaving(built.leaving, built.plan)
    for more in (('weight', 'float32[5]'), ('round', 'int64[5]'), ('client_id', 'int32[5]')):
      with pytest.raises(ValueError, match=f'{more[0]} '):
        leavings.check_leaving([*built.leaving, ('federated_sum', *more)], built.plan)

  def test_training_metrics(self):
    words = (
      r'Asked for by client_metrics: loss \(float32, by federated_sum\) .*num_examples \(int64, by federated_sum\)'
    )
    with pytest.raises(ValueError, match=words):
      _held(options=dict(client_metrics=True)).build_process(linear_model.Linear)
    with pytest.raises(ValueError, match='Asked for by FedDyn and client_metrics: .*loss .*own'):
      _held(feddyn.FedDyn(), dict(client_metrics=True)).build_process(linear_model.Linear)

  def test_a_trusted_server_gets_training_metrics_and_says_so(self):
    plan = _plan(options=dict(client_metrics=True))
    names = [name for _, name, _ in _leaving(plan)]
    assert names == ['loss', 'loss', 'num_examples', 'num_batches', 'client_id', '']
    assert plan.exact_logs  # No certificate is issued for it.
