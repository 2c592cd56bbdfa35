"""The first minute: what both runs learned, what is guaranteed, and a certificate that is verified."""

import re

import pytest

from experiments import demo
from experiments.folders import folder as run_folder
from quap_tff.certificates.folders import folder as folders
from quap_tff.common import files
from tests.experiments import harness

# Few rounds of a linear model, after what the presets say.
_SHORT = {
  'demo': ['--rounds=6', '--epsilon=2', '--model=logistic_regression', '--local_epochs=1'],
  'digits_certified': ['--rounds=4', '--local_epochs=1'],
}


@pytest.mark.slow
@pytest.mark.parametrize('short', [True, pytest.param(False, marks=pytest.mark.thorough)], ids=['short', 'whole'])
def test_it_shows_both_runs_replaces_earlier_ones_and_verifies_the_certificate(short, tmp_path, capsys, monkeypatch):
  monkeypatch.chdir(tmp_path)
  if short:
    for name, flags in _SHORT.items():
      lines = [f'--flagfile={harness.PRESETS / name}.flags', *flags]
      (tmp_path / f'{name}.flags').write_text('\n'.join(lines), encoding='utf-8')
    monkeypatch.setattr(demo, '_PRESETS', str(tmp_path))
  earlier = [tmp_path / 'runs' / 'demo' / preset for preset in ('demo', 'digits_certified')]
  for folder in earlier:
    folder.mkdir(parents=True)
    (folder / run_folder.RUN).write_text('Of an earlier demo.')
    (folder / 'kept').write_text('')
  assert demo.main(['demo']) == 0
  assert not any((folder / 'kept').exists() for folder in earlier)
  out = capsys.readouterr().out
  first, second = out.split('\n2. ')
  assert 'Guarantee: none.' in first and 'Nothing bounds' in first
  assert 'differentially private with ε ≤ 2.9' in second and 'is VALID' in ' '.join(second.split())
  assert re.search(
    r' is right at most \d\d\.\d% of the time, where a coin is right 50% of the time\. ', ' '.join(second.split())
  )
  assert second.rstrip().endswith('make compare')
  shares = re.findall(r'reads ([\d.]+)% of the digits', out)
  assert len(shares) == 2 and all(float(share) >= (0 if short else 80) for share in shares)
  assert max(map(len, out.splitlines())) <= 80
  path = tmp_path / 'runs' / 'demo' / 'digits_certified'
  file = path / folders.SUBFOLDER / folders.CERTIFICATE
  files.write_json(file, {**files.read_json(file), 'statement': 'Everything is private.'})
  with pytest.raises(ValueError, match='is invalid'):
    demo._verified(str(path))
