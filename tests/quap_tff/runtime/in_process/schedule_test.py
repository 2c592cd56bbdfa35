"""Which of a round's values are made in which pass."""

from quap_tff.runtime.in_process import schedule

Pass = schedule.Pass
SERVER, CLIENT, AGGREGATE = schedule.SERVER, schedule.CLIENT, schedule.AGGREGATE


def _local(name, kind, *uses, argument=False):
  return schedule.NamedValue(name, kind, frozenset(uses), argument)


def test_one_level_of_aggregation_is_one_pass():
  order = schedule.plan(
    [
      _local('message', SERVER, argument=True),
      _local('update', CLIENT, 'message', argument=True),
      _local('clipped', CLIENT, 'update', 'message'),
      _local('sum', AGGREGATE, 'clipped'),
      _local('metrics', AGGREGATE, 'update'),
      _local('model', SERVER, 'sum', argument=True),
    ],
    ['model', 'metrics'],
  )
  assert order == ['message', Pass(('update', 'clipped'), ('sum', 'metrics')), 'model']


def test_only_what_needs_an_aggregation_waits_for_it():
  order = schedule.plan(
    [
      _local('update', CLIENT, argument=True),
      _local('critical', CLIENT, 'update'),
      _local('norm', CLIENT, 'update'),
      _local('norms', AGGREGATE, 'norm'),
      _local('clip', SERVER, 'norms'),
      _local('clipped', CLIENT, 'critical', 'clip'),
      _local('others', CLIENT, 'update', 'norm'),
      _local('sum', AGGREGATE, 'clipped'),
      _local('sum_of_others', AGGREGATE, 'others'),
    ],
    ['sum', 'sum_of_others'],
  )
  assert order == [
    Pass(('update', 'critical', 'norm', 'others'), ('norms', 'sum_of_others')),
    'clip',
    Pass(('clipped',), ('sum',)),
  ]


def test_training_waits_until_it_is_needed():
  order = schedule.plan(
    [
      _local('id', CLIENT, argument=True),
      _local('data', CLIENT, argument=True),
      _local('zipped', CLIENT, 'id', 'data'),
      _local('update', CLIENT, 'zipped'),
      _local('metrics', AGGREGATE, 'update'),
      _local('ids', AGGREGATE, 'id'),
      _local('weights', SERVER, 'ids'),
      _local('clipped', CLIENT, 'update', 'weights'),
      _local('sum', AGGREGATE, 'clipped'),
    ],
    ['sum', 'metrics'],
  )
  assert order == [
    Pass(('id',), ('ids',)),
    'weights',
    Pass(('data', 'zipped', 'update', 'clipped'), ('metrics', 'sum')),
  ]


def test_three_levels():
  order = schedule.plan(
    [
      _local('first', AGGREGATE, argument=True),
      _local('a', CLIENT, 'first', argument=True),
      _local('second', AGGREGATE, 'a'),
      _local('b', CLIENT, 'a', 'second'),
      _local('third', AGGREGATE, 'b'),
    ],
    ['third', 'a'],
  )
  assert order == [Pass((), ('first',)), Pass(('a',), ('second',)), Pass(('b',), ('third',))]


def test_what_nobody_reads_is_not_made():
  order = schedule.plan(
    [
      _local('update', CLIENT, argument=True),
      _local('sum', AGGREGATE, 'update'),
      _local('state', SERVER, argument=True),
    ],
    ['state'],
  )
  assert order == ['state']


def test_clients_values_in_the_result_are_made_without_any_aggregation():
  order = schedule.plan([_local('a', CLIENT, argument=True), _local('b', CLIENT, 'a')], ['b'])
  assert order == [Pass(('a', 'b'), ())]
