"""A report on disk: aligned Markdown, CSV for programs, a page that needs no network and cuts no table off."""

import html.parser
import os

import pandas as pd
import pytest

from experiments.reporting import pages
from experiments.reporting import quantity

TABLE = pages.Table(
  't',
  'A table',
  [
    {'method': 'QuAP|FL', 'accuracy (%)': quantity.Quantity(93.25, 0.5), 'empty': None, 'seeds': '1 (42)'},
    {'method': 'FedAvg', 'accuracy (%)': None, 'empty': '', 'seeds': '1 (42)'},
    {'method': 'Fixed-DP <&>', 'accuracy (%)': 'not run', 'seeds': '1 (42)'},
  ],
)
WIDE = pages.Table('wide', 'One row', [{f'column {i}': f'value {i}' for i in range(9)}])


RUNS = pd.DataFrame({'seed': [1], 'accuracy': [90.0]})


def _draw(figure):
  figure.subplots().plot([0, 1], [0, 1])


SECTIONS = [
  pages.Section('A report', ['Some `code` and **weight** & <more>.']),
  pages.Section('Results', [TABLE, pages.Plot('f', 'A "line"', 'How to read it.', _draw, shows='It rises'), WIDE]),
]


class _Page(html.parser.HTMLParser):
  """Collects tags and what they refer to; every tag that opens must close."""

  _VOID = ('meta', 'img', 'wbr', '!doctype')

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
  pages.write_page(str(path), SECTIONS, RUNS)
  return path


def test_markdown(folder):
  text = (folder / 'report.md').read_text()
  assert text.startswith('# A report\n\nSome `code`')
  assert (
    """
A table. ± is half of the 95% interval of a mean over seeds (Student). All rows: seeds 1 (42):

| method       | accuracy (%) |
| ------------ | ------------ |
| QuAP\\|FL     | 93.25 ± 0.50 |
| FedAvg       | -            |
| Fixed-DP <&> | not run      |
"""
    in text
  )
  assert '![A "line". It rises](figures/f.png)\n\n*How to read it.*' in text


def test_a_table_of_one_row_has_its_row_as_a_row(folder):
  assert '\n| value 0  | value 1  | value 2  |' in (folder / 'report.md').read_text()


def test_the_table_of_all_runs(folder):
  assert (folder / 'runs.csv').read_text() == 'seed,accuracy\n1,90.0\n'


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
  assert 'alt="A &#34;line&#34;. It rises"' in text and '<figcaption>How to read it.</figcaption>' in text
  assert text.count('<table>') == 2


def test_tables_and_figures_scroll_in_frames_that_a_keyboard_reaches(folder):
  text = (folder / 'index.html').read_text()
  frame = '<div class="wide" role="region" tabindex="0" aria-label="{}">{}'
  of_table = 'A table. ± is half of the 95% interval of a mean over seeds (Student). All rows: seeds 1 (42)'
  assert frame.format(of_table, '<table>') in text and frame.format('One row', '<table>') in text
  assert frame.format('A &quot;line&quot;', '<img ') in text
  assert text.count('<table>') + text.count('<img ') == text.count('<div class="wide"')
  assert '.wide { overflow: auto;' in text


def test_flags_and_paths_may_break_within_a_cell_and_short_names_not():
  rows = [{'psnr_mean': 'client_update', 'a': 'clip=1,features=pretrained:path=runs/glyphs', 'b': '93.25 ± 0.50'}]
  text = pages.page([pages.Section('', ['`client_update`', pages.Table('t', 'digits_cnn', rows)])], {})
  assert '<td>clip=1,<wbr>features=<wbr>pretrained:<wbr>path=runs/<wbr>glyphs</td>' in text
  assert '<td>93.25&nbsp;±&nbsp;0.50</td>' in text
  assert text.count('<wbr>') == 4


def test_no_column_is_so_narrow_that_a_text_has_one_word_a_line():
  rows = [{'a': 'x', 'a rather long heading': 1, 'b': 'a text with quite a number of short words'}]
  text = pages.page([pages.Section('', [pages.Table('t', '', rows)])], {})
  assert [part.partition('ch"')[0] for part in text.split('min-width: ')[1:]] == ['1', '13', '18']


@pytest.mark.slow
def test_a_figure_is_a_png_under_its_title_and_always_the_same(folder, tmp_path):
  image = (folder / 'figures' / 'f.png').read_bytes()
  assert image[:8] == b'\x89PNG\r\n\x1a\n'
  pages.write_page(str(tmp_path), SECTIONS, RUNS)
  assert (tmp_path / 'figures' / 'f.png').read_bytes() == image
  figure = pages.plots.drawn(*SECTIONS[1].blocks[1].titled)
  assert figure.get_suptitle() == 'A "line"'


def test_figures_of_one_name_are_numbered():
  figure = SECTIONS[1].blocks[1]
  (section,) = pages.numbered([pages.Section('', [TABLE, figure, 'text', figure, WIDE])])
  names = [block if isinstance(block, str) else block.name for block in section.blocks]
  assert names == ['t', 'f_1', 'text', 'f_2', 'wide']


@pytest.mark.slow
def test_a_second_report_leaves_nothing_of_the_first(tmp_path):
  pages.write_page(str(tmp_path), SECTIONS, RUNS)
  pages.check_folder(str(tmp_path))
  pages.write_page(str(tmp_path), SECTIONS[:1], RUNS)
  assert not os.listdir(tmp_path / 'figures')


def test_folders_that_cannot_hold_a_report(tmp_path):
  (tmp_path / 'notes.txt').write_text('mine')
  with pytest.raises(ValueError, match='other than those of an earlier report'):
    pages.check_folder(str(tmp_path))
  with pytest.raises(ValueError, match='is a file'):
    pages.check_folder(str(tmp_path / 'notes.txt'))
  (tmp_path / 'run').mkdir()
  for name in ('run.json', 'report.md'):
    (tmp_path / 'run' / name).write_text('')
  with pytest.raises(ValueError, match='other than those'):
    pages.check_folder(str(tmp_path / 'run'))
  pages.check_folder(str(tmp_path / 'new'))
