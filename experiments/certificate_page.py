"""The page of a certificate: one HTML file that needs no network. The histogram of ε is drawn in it as SVG."""

from collections.abc import Iterable, Mapping, Sequence
import html
from typing import Any, Optional

from experiments import wide
from experiments.auditing import record
from quap_tff.common import rounding

_STYLE = (
  wide.CSS
  + """
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; max-width: 46rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.statement { border: 2px solid #111; padding: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #999; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
.columns th, .columns td { min-width: 7rem; } .columns .number { min-width: 3rem; }
td.number { text-align: right; white-space: nowrap; }
code { overflow-wrap: anywhere; } td code { display: block; min-width: 14rem; }
figure { margin: 0; } svg { width: 100%; max-width: 32rem; height: auto; } figcaption { color: #333; }
"""
)

_HOW_TO_READ = (
  'ε and δ bound what the release can reveal about one client. Imagine someone who sees the whole release, knows '
  "every other client's data, and makes some decision. With the client's data, the probability of this decision is "
  'at most e^ε times its probability without them, plus δ. Smaller values mean more privacy. The bound holds for '
  'every client. What each client has spent is in clients.csv.'
)
_READING = (
  'Reading',
  'The run ended before its plan. The figures that follow in this table, and the histogram, are what the '
  'account said at that moment. They are not a guarantee, because the moment may depend on what was released.',
)
_VERIFYING = (
  'Verification computes cohorts, weights and noise again from the flags, and every figure on this page from '
  'ledger.npz. It compares the digests below with the files. Digests reveal mistakes, and changes to some of the '
  'files. Only a signature (certificate.sig) says who made the folder. Without one, verification cannot tell if '
  'someone has made the whole folder anew. In either case, verification proves nothing about what the program did.'
)
_AUDITING = (
  "The audit made runs of its own, with the flags of this run. In them, canaries replaced some clients' data. Their "
  'models were thrown away, and no canary took part in the run that this certificate is about. The certificate gives '
  'an upper bound on ε, which was proved. The audit gives a lower bound, which was measured. The guarantee does not '
  'cover the figures of the audit, because its runs used the data of the other clients.'
)
# The units of the histogram are nearly a narrow screen's pixels.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 260, 28, 16, 70, 44


def render(certificate: Mapping[str, Any], audit: Optional[Mapping[str, Any]] = None) -> str:
  """The page of a certificate from `certificate.issue`, as text.

  Args:
    certificate: The certificate.
    audit: What an audit measured (`experiments.auditing.record`), without problems. None if there was no audit.
  """
  guarantee, achieved = certificate['guarantee'], certificate['achieved']
  provenance = certificate['provenance']
  run = provenance['run']
  accuracy, is_reading = run['test_accuracy'], achieved.get('is_reading', False)
  about = [
    ('Dataset', run['dataset'] if run['features'] == 'none' else f'{run["dataset"]}, features {run["features"]}'),
    ('Model', run['model']),
    ('Test accuracy', f'{accuracy:.2%}' if isinstance(accuracy, float) else 'not known'),
    ('Method', certificate['facts']['algorithm']),
    ('Date', f'{run["date"]}'),
  ]
  quantiles = ', '.join(f'{float(q):.0%}: {rounding.up(value)}' for q, value in achieved['epsilon_quantiles'].items())
  bound, delta, mu = rounding.up(guarantee['epsilon'], 15), rounding.up(guarantee['delta'], 15), guarantee['mu']
  most = f'ε = {rounding.up(achieved["epsilon_max"], 6)} (μ = {rounding.up(achieved["mu_max"], 6)})'
  rows = [
    ('Bound', f'ε = {bound} at δ = {delta} (μ = {rounding.up(mu, 6)}) per client, over all planned rounds'),
    *(
      ('Own bound', f'ε = {rounding.up(own["epsilon"], 15)} for {own["clients"]:,} clients')
      for own in guarantee['own_bounds']
    ),
    *([_READING] if is_reading else []),
    ('Largest spent', most),
    ('Mean over clients', f'ε = {rounding.up(achieved["epsilon_mean"], 6)}'),
    ('Quantiles over clients', f'ε = {quantiles}'),
    ('Clients', f'{achieved["clients"]:,}, of which {achieved["clients_that_took_part"]:,} took part'),
    ('Weight 0 in a round', f'{achieved["clients_with_a_weight_of_0"]:,} clients, which added nothing there'),
    ('Rounds', f'{achieved["rounds"]:,} of {achieved["planned_rounds"]:,} planned'),
    ('Unit', guarantee['unit']),
    ('Neighbours', guarantee['neighbours']),
    ('Accountant', guarantee['accountant']),
    ('Amplification', guarantee['amplification']),
    ('Noise multiplier', rounding.down(provenance['noise_multiplier'], 6)),
    ('Divisor', f'{provenance["divisor"]:.6g}'),
  ]
  relations = [(row['neighbours'], row['unit'], rounding.up(row['epsilon'])) for row in certificate['other_relations']]
  releases = [
    (release['what'], f'{release["rounds"]:,}', f'{release["share_of_worst_client"]:.1%}', release['how'])
    for release in certificate['releases']
  ]
  digests = [
    ('Program that issued it', _program(provenance['code'])),
    *(
      (f'Program of rounds {one["first_round"]:,} to {one["last_round"]:,}', _program(one['code']))
      for one in provenance.get('stretches', ())
    ),
    ('Configuration', provenance['config_sha256']),
    ('Planned cohorts', provenance['schedule_sha256']),
    ("Commitment to the clients' data (salted)", provenance['data_commitment']),
    *provenance['files_sha256'].items(),
    ('This certificate', certificate['sha256']),
  ]
  return '\n'.join(
    [
      '<!DOCTYPE html>',
      '<html lang="en">',
      '<head>',
      '<meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width, initial-scale=1">',
      '<title>Privacy certificate</title>',
      f'<style>{_STYLE}</style>',
      '</head>',
      '<body>',
      '<h1>Privacy certificate</h1>',
      f'<p class="statement">{html.escape(certificate["statement"])}</p>',
      _table(about),
      '<h2>What clients have spent</h2>',
      '<figure>',
      histogram(**achieved['epsilon_histogram']),
      f'<figcaption>Clients by the ε that they have spent{" when the run ended: a reading" if is_reading else ""}. The '
      'right edge is the bound.</figcaption>',
      '</figure>',
      _table(rows),
      '<h2>The same guarantee for other neighbours and groups</h2>',
      f'<p>All figures are at δ = {delta} and hold for every client or group. Compare only figures for '
      'the same relation.</p>',
      _table(relations, ('neighbours', 'unit', 'ε'), numbers=(2,)),
      '<h2>What was released</h2>',
      _table(releases, ('release', 'rounds', 'share of the largest μ²', 'why it may be released'), numbers=(1, 2)),
      '<h2>What was withheld</h2>',
      _list(certificate['withheld']),
      '<h2>What the guarantee assumes</h2>',
      _list(certificate['assumptions']),
      *(_audited(audit) if audit is not None else ()),
      '<h2>How to read it</h2>',
      f'<p>{html.escape(_HOW_TO_READ)}</p>',
      '<h2>How to verify it</h2>',
      '<p><code>python -m experiments.verify DIR</code></p>',
      f'<p>{html.escape(_VERIFYING)}</p>',
      _table(digests, code=(1,)),
      '</body>',
      '</html>',
      '',
    ]
  )


def _program(code) -> str:
  return f'quap_tff {code["quap_tff"]}, source {code["source_sha256"]}' if code else 'not recorded'


def _audited(audit) -> list[str]:
  return [
    '<h2>What an audit measured</h2>',
    f'<p>{html.escape(record.verdict(audit))} {html.escape(_AUDITING)}</p>',
    _table(record.rows(audit)),
  ]


def histogram(edges: Sequence[float], clients: Sequence[int]) -> str:
  """An SVG of counts between edges. Each count is above its bar, so that nobody has to compare shades."""
  width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
  bottom, top_count = _TOP + height, max([*clients, 1])
  across = lambda epsilon: _LEFT + width * (epsilon - edges[0]) / (edges[-1] - edges[0])
  parts = [
    f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="sans-serif" font-size="13" fill="#111">',
    "<title>Histogram of the clients' ε</title>",
  ]
  for low, high, count in zip(edges, edges[1:], clients):
    x, bar = across(low), height * count / top_count
    if count:
      parts.append(
        f'<rect x="{x + 1:.1f}" y="{bottom - bar:.1f}" width="{across(high) - x - 2:.1f}" height="{bar:.1f}" '
        'fill="#555"/>'
      )
      # Upright, because bars are narrower than their counts are long.
      middle = f'translate({(x + across(high)) / 2 + 5:.1f} {bottom - bar - 4:.1f}) rotate(-90)'
      parts.append(_text(0, 0, _short(count), f'transform="{middle}" style="text-anchor: start"'))
  parts.append(f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="#111"/>')
  parts.append(
    f'<path d="M{_WIDTH - _RIGHT} {_TOP - 60}V{bottom}" stroke="#111" stroke-width="2" stroke-dasharray="6 4"/>'
  )
  parts += [_text(across(edge), bottom + 17, f'{edge:.3g}') for edge in edges[::5]]
  parts.append(_text(_LEFT + width / 2, _HEIGHT - 8, 'ε'))
  parts.append(_text(0, 0, 'clients', f'transform="translate(16 {_TOP + height / 2:.0f}) rotate(-90)"'))
  parts.append(_text(_WIDTH - _RIGHT - 6, _TOP - 52, 'bound', 'style="text-anchor: end"'))
  return '\n'.join(parts + ['</svg>'])


def _short(count: int) -> str:
  """The count as text that is shorter than the space above a bar."""
  return f'{count}' if count < 10_000 else f'{count / 1000:.0f}k'


def _text(x: float, y: float, text: str, more: str = '') -> str:
  return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {more}>{html.escape(text)}</text>'.replace(' >', '>')


def _list(items: Iterable[str]) -> str:
  return '\n'.join(['<ul>', *(f'<li>{html.escape(item)}</li>' for item in items), '</ul>'])


def _table(
  rows: Iterable[Sequence[str]], header: Sequence[str] = (), numbers: Sequence[int] = (), code: Sequence[int] = ()
) -> str:
  lines: list[str] = ['<table class="columns">' if header else '<table>']
  if header:
    kinds = [' class="number"' if k in numbers else '' for k in range(len(header))]
    names = (f'<th{kind}>{html.escape(name)}</th>' for kind, name in zip(kinds, header))
    lines.append(f'<tr>{"".join(names)}</tr>')
  for row in rows:
    cells = []
    for k, cell in enumerate(row):
      text = html.escape(cell)
      text = f'<code>{text}</code>' if k in code else text
      cells.append(f'<td class="number">{text}</td>' if k in numbers else f'<td>{text}</td>')
    lines.append(f'<tr>{"".join(cells)}</tr>')
  return wide.framed('\n'.join([*lines, '</table>']), ', '.join(header) or 'A table of two columns')
