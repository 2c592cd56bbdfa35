"""A report on disk: aligned Markdown, CSV for programs, a page that needs no network."""

import csv
import html.parser
import os

import pytest

from experiments.reporting import document
from experiments.reporting import markdown
from experiments.reporting import quantities
from experiments.reporting import writing

TABLE = document.Table('t', 'A table', ('method', 'accuracy (%)'), [
    ('QuAP|FL', quantities.Quantity(93.25, 0.5)), ('FedAvg', None), ('Fixed-DP <&>', 'not run')
])


def _draw(figure):
  figure.subplots().plot([0, 1], [0, 1])


SECTIONS = [
    document.Section('A report', ['Some `code` and **weight** & <more>.']),
    document.Section('Results', [TABLE, document.Figure('f', 'A "line".', _draw)]),
    document.Section('Empty', [], 'python -m experiments.sweep'),
]


class _Page(html.parser.HTMLParser):
  """Collects tags and what they refer to; every tag that opens must close."""

  _VOID = ('meta', 'img', '!doctype')

  def __init__(self, text):
    super().__init__()
    self.open, self.tags, self.links = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.links += [value for name, value in attrs if name in ('src', 'href')]
    if tag not in self._VOID:
      self.open.append(tag)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('report')
  writing.write(str(path), SECTIONS)
  return path


def test_markdown_is_aligned():
  assert markdown.table(TABLE).splitlines() == [
      '| method       | accuracy (%) |',
      '| ------------ | ------------ |',
      '| QuAP\\|FL     | 93.25 ± 0.50 |',
      '| FedAvg       | -            |',
      '| Fixed-DP <&> | not run      |',
  ]


def test_markdown_has_it_all(folder):
  text = (folder / 'report.md').read_text()
  assert text.startswith('# A report\n\nSome `code`')
  assert '\n## Results\n' in text
  assert '![A "line".](figures/f.png)' in text
  assert 'Not run. These runs would fill it: `python -m experiments.sweep`' in text


def test_csv_splits_mean_and_deviation(folder):
  with open(folder / 'tables' / 't.csv', newline='') as f:
    assert list(csv.reader(f)) == [
        ['method', 'accuracy (%)', 'accuracy (%), deviation'],
        ['QuAP|FL', '93.25', '0.5'], ['FedAvg', '', ''], ['Fixed-DP <&>', 'not run', ''],
    ]


def test_the_page_needs_no_network_and_no_script(folder):
  text = (folder / 'index.html').read_text()
  page = _Page(text)
  assert 'http' not in text
  assert not {'script', 'link', 'iframe'} & set(page.tags)
  assert all(link.startswith(('data:image/png;base64,', '#')) for link in page.links)
  assert not page.open


def test_the_page_has_it_all(folder):
  text = (folder / 'index.html').read_text()
  assert '<code>code</code> and <strong>weight</strong> &amp; &lt;more&gt;.' in text
  assert '<td>Fixed-DP &lt;&amp;&gt;</td>' in text
  assert 'alt="A &quot;line&quot;."' in text
  assert text.count('<table>') == 1


def test_a_figure_is_a_png_and_always_the_same(folder, tmp_path):
  image = (folder / 'figures' / 'f.png').read_bytes()
  assert image[:8] == b'\x89PNG\r\n\x1a\n'
  writing.write(str(tmp_path), SECTIONS)
  assert (tmp_path / 'figures' / 'f.png').read_bytes() == image


def test_a_second_report_leaves_nothing_of_the_first(tmp_path):
  writing.write(str(tmp_path), SECTIONS)
  writing.check(str(tmp_path))
  writing.write(str(tmp_path), SECTIONS[:1])
  assert not os.listdir(tmp_path / 'tables') and not os.listdir(tmp_path / 'figures')


def test_folders_that_cannot_take_a_report(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  with pytest.raises(writing.OutputError, match='other files than an earlier report'):
    writing.check(str(tmp_path))
  with pytest.raises(writing.OutputError, match='is a file'):
    writing.check(str(tmp_path / 'notes.txt'))
  (tmp_path / 'run').mkdir()
  for name in ('run.json', 'report.md'):
    (tmp_path / 'run' / name).write_text('')
  with pytest.raises(writing.OutputError):
    writing.check(str(tmp_path / 'run'))
  writing.check(str(tmp_path / 'new'))
