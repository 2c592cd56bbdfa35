"""The page of a certificate: it says all, quotes its issuer, and needs no network."""

import dataclasses
import html.parser
import re

import pytest
from scipy import stats

from quap_tff.certificates import page
from quap_tff.certificates.folders import folder as folders
from quap_tff.mechanisms.certified import weight_rules
from tests.quap_tff.certificates import made


class _Tags(html.parser.HTMLParser):
  def __init__(self, text):
    super().__init__()
    self.open, self.text, self.links = [], '', []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.links += [value for name, value in attrs if name in ('src', 'href')]
    if tag != 'meta' and not self.get_starttag_text().endswith('/>'):
      self.open.append(tag)

  def handle_endtag(self, tag):
    if self.open and self.open[-1] == tag:
      self.open.pop()

  def handle_data(self, data):
    self.text += data


def _page(path):
  return (path / folders.PAGE).read_text(encoding='utf-8')


@pytest.mark.parametrize('name', ['server', 'held'])
def test_it_says_all_and_needs_no_network(name, originals):
  path = originals / name
  tags, certificate = _Tags(_page(path)), made.read(path, folders.CERTIFICATE)
  assert not tags.open and not tags.links and 'http' not in tags.text
  texts = [certificate['statement'], certificate['sha256'], *certificate['assumptions'], *certificate['withheld']]
  texts += [release[name] for release in certificate['releases'] for name in ('what', 'how')]
  texts += list(certificate['provenance']['files_sha256'].values())
  texts += list(certificate['provenance']['code'].values())
  texts += [row['neighbours'] for row in certificate['other_relations']]
  texts += [one[name] for one in certificate['leaves_clients'] for name in ('value', 'type', 'by')]
  texts += [certificate['issuer']['date'], 'python -m quap_tff.verify DIR', 'mechanism.json and schedule.npz']
  texts += [f'Colluders: {one["clients"]}' for one in certificate['guarantee']['colluders']]
  for text in texts:
    assert text in tags.text  # `a <public> seed` among them: escaped.


@pytest.mark.parametrize('name', ['server', 'held'])
def test_it_opens_with_three_answers(name, originals):
  text, certificate = _page(originals / name), made.read(originals / name, folders.CERTIFICATE)
  answers = re.findall(r'<dt>(.*?)</dt><dd>(.*?)</dd>', text)
  (who, protected), (strongly, chance), (long, ends) = answers
  assert who.startswith('Who') and strongly.startswith('How strongly') and long.startswith('For how long')
  assert text.index('<dt>') < text.index(certificate['statement'][:40])
  assert f'Each of the {certificate["achieved"]["clients"]} clients' in protected
  assert ('There is no protection against the server' in protected) == (name == 'server')
  assert ('the sum opens as the plan assumes' in protected) == (name == 'held')
  # The best test between N(0, 1) and N(μ, 1), if both are equally likely, is right with probability Φ(μ/2).
  percent = 100 * stats.norm.cdf(certificate['guarantee']['mu'] / 2)
  assert 0 <= float(re.search(r'at most ([\d.]+)% of', chance)[1]) - percent < 0.11
  assert 'Every other training' in ends


def test_the_issuers_words_are_quoted_and_the_rest_is_not_theirs(certified, tmp_path):
  texts = {name: f'{name} x7 <b>' for name in ('dataset', 'cohorts', 'tuning', 'test_set', 'model', 'algorithm')}
  texts.update(features='features x7', public_data='public_data x7', post_processing='post_processing x7')
  path = made.folder(tmp_path / 'run', about=dataclasses.replace(made.ABOUT, **texts))
  page_text = _Tags(_page(path)).text
  for text in texts.values():
    assert text in page_text
  # Every place is within quotation marks.
  outside = re.sub('“[^”]*”', '', page_text)
  assert 'x7' not in outside and 'What the issuer states' in outside
  assert '<b>' not in _page(path)


def test_an_accuracy_that_is_not_stated(tmp_path):
  path = made.folder(tmp_path / 'run', about=dataclasses.replace(made.ABOUT, test_accuracy=None))
  assert 'not stated' in _page(path) and '50.00%' not in _page(path)


def test_own_bounds_and_a_reading(tmp_path):
  plan = made.plan(weights=weight_rules.ScaledWeights(), own_epsilon=(2.0,) * 2 + (3.0,) * 4)
  path = made.folder(tmp_path / 'run', plan, rounds=2, about=dataclasses.replace(made.ABOUT, tests=0))
  text = _Tags(_page(path)).text
  assert 'ε = 2 for 2 clients' in text and 'ε = 3 for 4 clients' in text and 'They are not a guarantee' in text
  assert '2 of 4 planned' in text


def test_code_of_stretches_is_named(tmp_path):
  code = {'quap_tff': '0.3.1', 'source_sha256': 'f' * 64}
  stretch = {'first_round': 1, 'last_round': 4, 'code': code, 'versions': {}}
  path = made.folder(tmp_path / 'run', about=dataclasses.replace(made.ABOUT, stretches=(stretch,)))
  assert f'Program of rounds 1 to 4quap_tff 0.3.1, source {"f" * 64}' in re.sub(
    r'\s*\n\s*', '', _Tags(_page(path)).text
  )


def test_tables_scroll_in_frames_of_their_own(certified):
  text = _page(certified)
  framed = re.findall(r'<div class="wide" role="region" tabindex="0" aria-label="[^"]+"><table', text)
  assert len(framed) == text.count('<table') > 4


def test_labels_of_the_histogram_can_be_read_on_a_narrow_screen(certified):
  text = _page(certified)
  width = float(re.search(r'viewBox="0 0 (\d+) ', text)[1])
  # A screen of 390 pixels has 358 between the margins.
  assert float(re.search(r'font-size="(\d+)"', text)[1]) * 358 / width >= 12


def test_bars_stand_for_counts(certified):
  certificate = made.read(certified, folders.CERTIFICATE)
  certificate['achieved']['epsilon_histogram'] = {'edges': [0.0, 1.0, 2.0, 3.0], 'clients': [5000, 0, 20000]}
  text = page.render(certificate)
  assert text.count('<rect') == 2 and '>5000<' in text and '>20k<' in text
  # The axes and the counts above the bars take 114 of the 260 units.
  assert re.findall(r'<rect.* height="([\d.]+)"', text) == ['36.5', '146.0']


def test_a_single_bar_is_a_sentence(certified):
  certificate = made.read(certified, folders.CERTIFICATE)
  achieved = certificate['achieved']
  achieved['epsilon_histogram'] = {'edges': [0.0, 2.85, 3.0], 'clients': [0, 6]}
  achieved['epsilon_quantiles'] = {name: 2.999 for name in achieved['epsilon_quantiles']}
  text = page.render(certificate)
  assert '<svg' not in text and '<p>Each of the 6 clients has spent ε ≤ 2.999.</p>' in text
  achieved['epsilon_quantiles']['0'] = 2.95
  achieved['is_reading'] = True
  said = '<p>Each of the 6 clients has spent ε ≤ 2.999 when the run ended: a reading. The client that spent least has '
  assert f'{said}spent ε ≤ 2.95.</p>' in page.render(certificate)


@pytest.mark.parametrize(
  'mu, said',
  [
    (0.719117, 'is right at most 64.1% of the time, if'),
    (7.344792, 'is right at most 99.99% of the time, if'),
    (50.0, 'is right perhaps always: the guarantee does not exclude that, if'),
  ],
)
def test_a_chance_below_all_is_never_all(mu, said, certified):
  certificate = made.read(certified, folders.CERTIFICATE)
  certificate['guarantee']['mu'] = mu
  assert said in page.render(certificate)
