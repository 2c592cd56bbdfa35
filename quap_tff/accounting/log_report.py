"""The account of a log, as tables, a figure and a page."""

import base64
from collections.abc import Iterable, Mapping, Sequence
import csv
import html
import io
import os
from typing import Any, NamedTuple, Optional

import numpy as np

from quap_tff.accounting import accountants
from quap_tff.accounting import coins as coin_tests
from quap_tff.accounting import history as histories
from quap_tff.accounting import logs
from quap_tff.accounting import theorems
from quap_tff.common import console
from quap_tff.common import files
from quap_tff.common import html_page
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.common.numbers import tradeoff
from quap_tff.mechanisms.noise import correlation as correlations

CLIENTS, FIGURE, PAGE = 'clients.csv', 'epsilon.png', 'account.html'
QUANTILES = (0.5, 0.9, 0.99, 1.0)
# Accountants that others use.
_USUAL = ('rdp', 'pld')
_MOST_ROWS = 10

STATEMENT = (
  'ε holds for each client if every update was clipped to norm clip·weight, and noise of standard deviation '
  'noise_multiplier·clip was added to each coordinate of the sum of every round. That was the work of another program: '
  f'the log does not show it. Unit: {accountants.UNIT}. Neighbours: {histories.ZERO_OUT}. Who takes part must not '
  "depend on clients' data. No amplification by sampling is counted. If the program stopped because of what it had "
  'released, the figures are a reading and not a guarantee.'
)


class TextTable(NamedTuple):
  """Rows of texts, under a title, with a sentence on what they are; '' for none."""

  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[str]]
  note: str = ''


class LogReport(NamedTuple):
  """The account of a log.

  Attributes:
    account: What the clients have spent.
    epsilon: float64[N], the same at δ, rounded up.
    bound: The ε that nobody may exceed; None if there is none.
    tables: For people.
    over: How many clients have spent more than the bound.
  """

  account: logs.LogAccount
  epsilon: np.ndarray
  bound: Optional[float]
  tables: Sequence[TextTable]
  over: int


def report(
  account: logs.LogAccount,
  noise_multiplier: float,
  delta: float,
  bound: Optional[float] = None,
  correlation: correlations.Correlation = correlations.Independent(),
  coins: Optional[coin_tests.Coins] = None,
) -> LogReport:
  """The figures of a log.

  Args:
    account: From `logs.account`.
    noise_multiplier: z of each round.
    delta: The total δ.
    bound: The ε that nobody may exceed.
    correlation: The correlation of the noise.
    coins: The assumption that each round drew each client by a coin. None: no amplified figures.
  """
  epsilon = tradeoff.epsilon_of(np.sqrt(account.mu_squared), delta)
  tables = [
    _quantiles(epsilon),
    _by_rounds(account, epsilon),
    _largest(account, epsilon),
    _comparison(account, noise_multiplier, delta, correlation, coins),
  ]
  over = 0 if bound is None else int(np.count_nonzero(~(epsilon <= bound)))
  return LogReport(account, epsilon, bound, tables, over)


def _quantiles(epsilon: np.ndarray) -> TextTable:
  quantiles = np.quantile(epsilon, QUANTILES, method='higher')
  cells = [(f'{q:.0%} at most', rounding.up(e)) for q, e in zip(QUANTILES, quantiles)]
  return TextTable('What clients have spent', ('clients', 'ε'), [*cells, ('mean', rounding.up(epsilon.mean()))])


def _by_rounds(account: logs.LogAccount, epsilon: np.ndarray) -> TextTable:
  distinct = np.unique(account.counts)
  if len(distinct) > _MOST_ROWS:
    distinct = np.unique(np.quantile(account.counts, np.linspace(0, 1, _MOST_ROWS + 1), method='lower'))
  rows = []
  for low, high in zip(distinct, [*(distinct[1:] - 1), account.counts.max()]):
    epsilons = epsilon[(account.counts >= low) & (account.counts <= high)]
    name = f'{low:,}' if low == high else f'{low:,} to {high:,}'
    rows.append((name, f'{len(epsilons):,}', *(rounding.up(one) for one in (epsilons.min(), epsilons.max()))))
  return TextTable('By how often they took part', ('rounds', 'clients', 'least ε', 'largest ε'), rows)


def _largest(account: logs.LogAccount, epsilon: np.ndarray) -> TextTable:
  order = np.argsort(-epsilon, kind='stable')[:_MOST_ROWS]
  rows = [(account.names[i], f'{account.counts[i]:,}', rounding.up(epsilon[i])) for i in order]
  return TextTable('Those who have spent most', ('client', 'rounds', 'ε'), rows)


def _comparison(
  account: logs.LogAccount,
  noise_multiplier: float,
  delta: float,
  correlation: correlations.Correlation,
  coins: Optional[coin_tests.Coins],
) -> TextTable:
  """The figures of the usual accountants for the same log, and the assumptions of each. Arguments as for `report`."""
  mu = float(np.sqrt(account.mu_squared.max()))
  rounds, public = account.num_rounds, 'none: who takes part may be known'
  whom = 'the client that spent most'
  rows = [('exact, for each client', rounding.up(float(tradeoff.epsilon_of(mu, delta))), whom, public)]

  def add(history: histories.History, whom: str, assumption: str) -> None:
    rows.extend((name, _figure(name, history, delta), whom, assumption) for name in _USUAL if mu)

  # Without a loss nothing is added, so any noise will do.
  noise_of_one_round = 1 / mu if mu else 1.0
  add(histories.History.gaussian(noise_of_one_round, 1), whom, public)
  if correlation.num_buffers or not account.is_whole:
    why = 'the noise is correlated' if correlation.num_buffers else 'weights differ'
    note = f'No further figures: {why}, for which these accountants have none.'
  else:
    add(
      histories.History.gaussian(noise_multiplier, rounds),
      'a client in every round',
      'none: all clients get the figure of such a client',
    )
    note = (
      'No amplification by sampling is counted. --sampling_rate adds figures for clients that were drawn by coins: an '
      'assumption that no log can show.'
    )
    if coins is not None and coins.rate == 1:
      note = 'With --sampling_rate=1 everyone is in every round, so there is no sampling that could amplify anything.'
    elif coins is not None and coins.contradiction:
      note = (
        f'No amplified figures: this log was not drawn by coins of q = {coins.rate:g}. {coins.contradiction} Each '
        f'log that was drawn so is refused with a probability of at most {coin_tests.LEVEL:g}.'
      )
    elif coins is not None:
      note = (
        f'The figures with q = {coins.rate:g} hold only under the assumption that --sampling_rate makes, which no log '
        'can show. It is not a finding that the log does not contradict it.'
      )
      add(
        histories.History.gaussian(noise_multiplier, rounds, coins.rate),
        'any client',
        f'ASSUMED, which no log can show: Poisson sampling, q = {coins.rate:g}, a secret coin for each client in each '
        'round; nobody learns who came (this log stays secret); neighbours: add or remove one client',
      )
  header = ('accountant', 'ε', 'for', 'amplification, and what it assumes')
  return TextTable('What usual accountants say', header, rows, note)


def _figure(name: str, history: histories.History, delta: float) -> str:
  try:
    figure = accountants.account(history, delta, [name])[name]
  except ImportError:
    return 'needs the package dp-accounting'
  if isinstance(figure, accountants.NotApplicable):
    return f'none: {figure.reason}'
  if history.is_sampled and figure.epsilon >= theorems.unamplified(history, delta):
    return 'none: no amplification is proven here'
  return rounding.up(figure.epsilon)


def tables_text(tables: Sequence[TextTable]) -> str:
  """The tables for a terminal, in which names command nothing."""
  lines = []
  for table in tables:
    rows = [list(map(console.shown, row)) for row in (table.header, *table.rows)]
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    lines.append(f'{table.title}:')
    for row in rows:
      cells = [cell.ljust(width) for cell, width in zip(row, widths)]
      lines.append('  '.join(['', *cells]).rstrip())
    lines += [f'  {table.note}', ''] if table.note else ['']
  return '\n'.join(lines)


def clients_text(clients: Iterable[Any], rounds: np.ndarray, epsilons: Mapping[str, np.ndarray]) -> str:
  """clients.csv: a row for each client, with its rounds, and columns of ε, rounded up to six digits."""
  columns: dict[str, Iterable[Any]] = {'client': clients, 'rounds': rounds.tolist()}
  for name, epsilon in epsilons.items():
    columns[name] = rounded_up(epsilon)
  return csv_text(columns)


def rounded_up(values: np.ndarray) -> list[str]:
  """Cells of a column of upper bounds, in six digits."""
  distinct, index = np.unique(values, return_inverse=True)  # Most clients of a large population have spent the same.
  texts = [rounding.up(one, 6) for one in distinct]
  return [texts[place] for place in index.ravel().tolist()]


def csv_text(columns: Mapping[str, Iterable[Any]]) -> str:
  """A CSV file with these columns, by name."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(columns)
  writer.writerows(zip(*columns.values()))
  return text.getvalue()


def write_report(folder: str, made: LogReport, head: Sequence[str]) -> list[str]:
  """Writes clients.csv, the figure and the page to a folder; returns a sentence for each that was not written.

  Args:
    folder: Made if need be.
    made: The report.
    head: Sentences for the page.
  """
  os.makedirs(folder, exist_ok=True)
  files.write(
    os.path.join(folder, CLIENTS), clients_text(made.account.names, made.account.counts, {'epsilon': made.epsilon})
  )
  image, missing = _image(made), []
  if image:
    files.write(os.path.join(folder, FIGURE), image)
  else:
    missing.append(f'{FIGURE} was not made: it needs the package matplotlib.')
  files.write(os.path.join(folder, PAGE), _page(made, head, image))
  return missing


def _image(made: LogReport) -> bytes:
  """A PNG: how many clients have spent which ε; empty without matplotlib."""
  try:
    figures = lazy.load('matplotlib.figure')
  except ImportError:
    return b''
  figure = figures.Figure(figsize=(7, 3.5), layout='constrained')
  axes = figure.add_subplot()
  axes.hist(made.epsilon, bins=40, color='#555')
  if made.bound is not None:
    axes.axvline(made.bound, color='#111', linestyle='--', label=f'bound: ε = {made.bound:g}')
    axes.legend(frameon=False)
  axes.set(xlabel='ε', ylabel='clients', title='What clients have spent')
  axes.spines[['top', 'right']].set_visible(False)
  content = io.BytesIO()
  figure.savefig(content, dpi=150)
  return content.getvalue()


def _page(made: LogReport, head: Sequence[str], image: bytes) -> str:
  """One HTML file that needs no network."""

  def row(cells: Sequence[str], tag: str) -> str:
    return '<tr>' + ''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells) + '</tr>'

  parts = [f'<p>{html.escape(one)}</p>' for one in head]
  if image:
    parts.append(f'<img alt="Clients by ε" src="data:image/png;base64,{base64.b64encode(image).decode()}">')
  for table in made.tables:
    rows = [row(table.header, 'th'), *(row(one, 'td') for one in table.rows)]
    parts.append(f'<h2>{html.escape(table.title)}</h2>')
    parts.append(html_page.framed(f'<table>{"".join(rows)}</table>', table.title))
    parts.append(f'<p>{html.escape(table.note)}</p>')
  style = (
    'th, td { border-bottom: 1px solid #999; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }\n'
    'table { border-collapse: collapse; } img { max-width: 100%; }'
  )
  return html_page.page('Account of a log', '\n'.join(parts), '50rem', style)


def summary(made: LogReport) -> dict[str, Any]:
  """The figures, for a program."""
  return {
    'clients': len(made.epsilon),
    'rounds': made.account.num_rounds,
    'participations': int(made.account.counts.sum()),
    'epsilon_max': float(made.epsilon.max()),
    'epsilon_mean': float(made.epsilon.mean()),
    'epsilon_quantiles': {f'{q:g}': float(np.quantile(made.epsilon, q, method='higher')) for q in QUANTILES},
    'bound': made.bound,
    'over': made.over,
  }
