"""The best pair of each method among tuning runs."""

from experiments.reporting import best
from tests.experiments.reporting import factory


def test_each_method_has_a_line_with_its_best_pair(tmp_path, capsys):
  for number, (norm, rate, accuracy) in enumerate([(0.1, 1, 0.8), (0.2, 1, 0.95), (0.2, 3, 0.9), (0.4, 1, 0.7)]):
    optimizer = f'sgd:learning_rate={rate}'
    factory.write_run(
      tmp_path / f'a{number}', algorithm=f'fixed_dp:clip={norm}', client_optimizer=optimizer, accuracy=accuracy
    )
  factory.write_run(tmp_path / 'b', algorithm='tff_dp_fedavg:clip=0.5', accuracy=0.6)
  best.main(['best', str(tmp_path)])
  first, second = capsys.readouterr().out.splitlines()
  pair = 'fixed_dp:clip=0.2 sgd:learning_rate=1'
  assert first == f'mnist, beta:a=2,b=5, ε = 6: {pair}: 95.00%; then 90.00 at 0.2, 80.00 at 0.1'
  assert second.endswith('tff_dp_fedavg:clip=0.5 sgd:learning_rate=0.005: 60.00%; then none')


def test_a_norm_at_the_edge_is_marked(tmp_path, capsys):
  for norm, accuracy in ((0.1, 0.9), (0.2, 0.8)):
    factory.write_run(tmp_path / str(norm), algorithm=f'fixed_dp:clip={norm}', accuracy=accuracy)
  best.main(['best', str(tmp_path)])
  assert 'fixed_dp:clip=0.1 sgd:learning_rate=0.005 (edge): 90.00%' in capsys.readouterr().out
