"""The page of a certificate: one HTML file that needs no network. The histogram of ε is drawn in it as SVG.

Verification renders the page again and compares the bytes, so a change here is a new version of certificates.
"""

from collections.abc import Mapping, Sequence
import functools
import html
from typing import Any

from quap_tff.certificates import sentences
from quap_tff.common import html_page
from quap_tff.common import lazy
from quap_tff.common.numbers import rounding
from quap_tff.plans.accounts import run_account

jinja2 = lazy.module('jinja2')
markupsafe = lazy.module('markupsafe')

_TEMPLATE = """\
{% macro table(rows, header=(), numbers=(), code=()) %}
<div class="wide" role="region" tabindex="0" aria-label="{{ header|join(', ') or 'A table of two columns' }}">\
<table{% if header %} class="columns"{% endif %}>
{% if header %}
<tr>{% for name in header %}<th{% if loop.index0 in numbers %} class="number"{% endif %}>{{ name }}</th>\
{% endfor %}</tr>
{% endif %}
{% for row in rows %}
<tr>{% for cell in row %}<td{% if loop.index0 in numbers %} class="number"{% endif %}>\
{% if loop.index0 in code %}<code>{{ cell }}</code>{% else %}{{ cell }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}
</table></div>
{% endmacro %}
{% macro list(items) %}
<ul>
{% for item in items %}
<li>{{ item }}</li>
{% endfor %}
</ul>
{% endmacro %}
<dl>
{% for question, answer in in_short %}
<dt>{{ question }}</dt><dd>{{ answer }}</dd>
{% endfor %}
</dl>
<h2>The exact statement</h2>
<p class="statement">{{ certificate.statement }}</p>
<h2>What the issuer states</h2>
<p>Nothing in the folder shows whether this is true.</p>
{{ table(about) -}}
<h2>What clients have spent</h2>
{% if bars|length == 1 %}
<p>{{ only_bar }}</p>
{% else %}
<figure>
<svg viewBox="0 0 360 260" role="img" font-family="sans-serif" font-size="13" fill="#111">
<title>Histogram of the clients' ε</title>
{% for bar in bars %}
<rect x="{{ bar.left }}" y="{{ bar.top }}" width="{{ bar.width }}" height="{{ bar.height }}" fill="#555"/>
<text x="0.0" y="0.0" text-anchor="middle" transform="translate({{ bar.middle }} {{ bar.above }}) rotate(-90)" \
style="text-anchor: start">{{ bar.count }}</text>
{% endfor %}
<path d="M28 216H344" stroke="#111"/>
<path d="M344 10V216" stroke="#111" stroke-width="2" stroke-dasharray="6 4"/>
{% for x, edge in ticks %}
<text x="{{ x }}" y="233.0" text-anchor="middle">{{ edge }}</text>
{% endfor %}
<text x="186.0" y="252.0" text-anchor="middle">ε</text>
<text x="0.0" y="0.0" text-anchor="middle" transform="translate(16 143) rotate(-90)">clients</text>
<text x="338.0" y="18.0" text-anchor="middle" style="text-anchor: end">bound</text>
</svg>
<figcaption>Clients by the ε that they have spent{% if is_reading %} when the run ended: a reading{% endif %}. The \
right edge is the bound.</figcaption>
</figure>
{% endif %}
{{ table(figures) -}}
<h2>The same guarantee for other neighbours and groups</h2>
<p>All figures are at δ = {{ delta }} and hold for every client or group. Compare only figures for the same \
relation.</p>
{{ table(relations, ('neighbours', 'unit', 'ε'), numbers=(2,)) -}}
<h2>What was released</h2>
{{ table(releases, ('release', 'rounds', share, 'why it may be released'), numbers=(1, 2)) -}}
<h2>What leaves clients</h2>
<p>Read off the computation that ran, for each round. The server sees what these intrinsics of TensorFlow Federated \
give it.</p>
{{ table(leaves, ('value', 'type for one client', 'by'), code=(1, 2)) -}}
<h2>What was withheld</h2>
{{ list(certificate.withheld) -}}
<h2>What the guarantee assumes</h2>
{{ list(certificate.assumptions) -}}
<h2>How to read it</h2>
<p>ε and δ bound what the release can reveal about one client. Imagine someone who sees the whole release, knows every \
other client&#x27;s data, and makes some decision. With the client&#x27;s data, the probability of this decision is at \
most e^ε times its probability without them, plus δ. Smaller values mean more privacy. The bound holds for every \
client. What each client has spent is in clients.csv.</p>
<h2>How to verify it</h2>
<p><code>python -m quap_tff.verify DIR</code></p>
<p>{{ computed }} It compares the digests below with the files. Digests reveal mistakes, and changes to \
some of the files. Only a signature (certificate.sig) says who made the folder. Without one, verification cannot tell \
if someone has made the whole folder anew. In either case, verification proves nothing about what the program did.</p>
{{ table(digests, code=(1,)) -}}
"""
_STYLE = """\
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
dt { font-weight: 600; } dd { margin: 0 0 .6rem; }
.statement { border: 2px solid #111; padding: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #999; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
.columns th, .columns td { min-width: 7rem; } .columns .number { min-width: 3rem; }
td.number { text-align: right; white-space: nowrap; }
code { overflow-wrap: anywhere; } td code { display: block; min-width: 14rem; }
figure { margin: 0; } svg { width: 100%; max-width: 32rem; height: auto; } figcaption { color: #333; }"""

_READING = (
  'Reading',
  'The run ended before its plan, or not all planned clients came. The figures that follow in this table, and the '
  'histogram, are what the account said at that moment. They are not a guarantee, because the moment, and who came, '
  'may depend on what was released.',
)
_READING_OF_COHORTS = (
  'Reading',
  'Cohorts were not planned. The figures that follow in this table, and the histogram, are what the account said at '
  'the end. They are not a guarantee, because who came may depend on what was released. The bound holds for any '
  'cohorts.',
)
# The head of a column: the releases' shares of the cost to the client that spends most.
_SHARE = {False: 'share of the largest μ²', True: 'share of the privacy loss'}
_COMPUTED = {
  run_account.PLANNED: "Verification computes each client's weights again from mechanism.json and schedule.npz, and "
  'every figure on this page from ledger.npz.',
  run_account.AS_THEY_CAME: "Verification computes each client's weights again from mechanism.json and the cohorts in "
  'ledger.npz, and every figure on this page from ledger.npz.',
  run_account.SECRET: 'Verification computes every figure on this page again from mechanism.json.',
}
# The units of the histogram are nearly a narrow screen's pixels. The template holds the rest of the drawing.
_LEFT, _WIDTH, _BOTTOM, _HEIGHT = 28, 316, 216, 146


def render(certificate: Mapping[str, Any]) -> str:
  """The page of a certificate from `certificate.make`, as text."""
  histogram = certificate['achieved']['epsilon_histogram']
  edges = histogram['edges']
  body = _template().render(
    certificate=certificate,
    in_short=_in_short(certificate),
    is_reading=certificate['achieved']['is_reading'],
    share=_SHARE[certificate['guarantee']['cohorts'] == run_account.SECRET],
    computed=_COMPUTED[certificate['guarantee']['cohorts']],
    about=_about(certificate),
    bars=_bars(**histogram),
    only_bar=_only_bar(certificate['achieved']),
    ticks=[(f'{_across(edge, edges):.1f}', f'{edge:.3g}') for edge in edges[::5]],
    figures=_figures(certificate),
    delta=rounding.up(certificate['guarantee']['delta'], 15),
    relations=[(row['neighbours'], row['unit'], rounding.up(row['epsilon'])) for row in certificate['other_relations']],
    releases=[
      (release['what'], f'{release["rounds"]:,}', f'{release["share_of_worst_client"]:.1%}', release['how'])
      for release in certificate['releases']
    ],
    leaves=[(one['value'] or 'without a name', one['type'], one['by']) for one in certificate['leaves_clients']],
    digests=_digests(certificate),
  )
  return html_page.page('Privacy certificate', body, '46rem', _STYLE)


def _escaped(value: Any) -> Any:
  """A value as a page shows it: quotes are escaped as `html` does it, in the bytes that pages have always had."""
  if hasattr(value, '__html__'):
    return value
  return markupsafe.Markup(html.escape(str(value)))


@functools.cache
def _template() -> Any:
  environment = jinja2.Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
    finalize=_escaped,
  )
  return environment.from_string(_TEMPLATE)


def _in_short(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Three answers for a reader who knows no mathematics: who is protected, how strongly, and for how long."""
  clients, trust = certificate['achieved']['clients'], sentences.OF_TRUST[certificate['guarantee']['trust']].in_short
  condition = ''
  if certificate['guarantee']['cohorts'] == run_account.SECRET:
    condition = ' This holds as long as they do not learn in which rounds the client was.'
  return [
    (
      'Who is protected, and against whom?',
      f'Each of the {clients:,} clients, with all of its data, against everyone who sees what was released, even if '
      f'they know the data of all other clients.{condition} {trust}',
    ),
    (
      'How strongly?',
      'Someone who guesses from what was released whether the data of one client were used is right '
      f'{sentences.chance(certificate)}, if both were equally likely before. A coin is right 50% of the time.',
    ),
    (
      'For how long?',
      'For as long as the keys of the noise are secret and nobody can break their cipher, whatever is computed from '
      'what was released. Every other training on the data of the same clients adds to what this one reveals.',
    ),
  ]


def _about(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
  issuer = certificate['issuer']
  accuracy, features = issuer['test_accuracy'], issuer['features']
  dataset = issuer['dataset'] if features == 'none' else f'{issuer["dataset"]}, features {features}'
  # The issuer's own words stand in quotation marks.
  rows = [
    ('Dataset', f'“{dataset}”'),
    ('Model', f'“{issuer["model"]}”'),
    ('Method', f'“{issuer["algorithm"]}”'),
    ('Test accuracy', f'{accuracy:.2%}' if accuracy is not None else 'not stated'),
    ('Tests', f'{issuer["tests"]:,}'),
    ('Date', issuer['date']),
  ]
  if issuer['data_commitment']:
    rows.append(('Commitment to the clients’ data (salted)', issuer['data_commitment']))
  return rows


def _before(spent: Mapping[str, Any]) -> tuple[str, str]:
  most = rounding.up(spent['epsilon_max'], 6)
  return 'Spent before', f'by {spent["clients"]:,} clients, at most ε = {most} (trust: {spent["trust"]})'


def _figures(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
  guarantee, achieved, facts = (certificate[name] for name in ('guarantee', 'achieved', 'facts'))
  rows = [('Bound', _bound(certificate))]
  for own in guarantee['own_bounds']:
    rows.append(('Own bound', f'ε = {rounding.up(own["epsilon"], 15)} for {own["clients"]:,} clients'))
  if 'spent_before' in guarantee:
    rows.append(_before(guarantee['spent_before']))
  rows.append(('Trust', sentences.OF_TRUST[guarantee['trust']].short))
  for against in guarantee.get('colluders', ()):
    most = f'ε = {rounding.up(against["epsilon"], 6)}, whichever other clients they are'
    rows.append((f'Colluders: {against["clients"]:,}', most))
  rows.append(('Cohorts', guarantee['cohorts']))
  is_secret = guarantee['cohorts'] == run_account.SECRET
  rows += _spent_by_rate(certificate) if is_secret else _spent_in_rounds(certificate)
  quantiles = [f'{float(q):.0%}: {rounding.up(value)}' for q, value in achieved['epsilon_quantiles'].items()]
  rows += [
    ('Mean over clients', f'ε = {rounding.up(achieved["epsilon_mean"], 6)}'),
    ('Quantiles over clients', f'ε = {", ".join(quantiles)}'),
  ]
  for name in ('unit', 'neighbours', 'accountant', 'amplification'):
    rows.append((name.capitalize(), guarantee[name]))
  rows += [('Noise multiplier', rounding.down(facts['noise_multiplier'], 6)), ('Divisor', f'{facts["divisor"]:.6g}')]
  return rows


def _bound(certificate: Mapping[str, Any]) -> str:
  guarantee = certificate['guarantee']
  planned = 'over all rounds, for any cohorts' if _came(certificate) else 'over all planned rounds'
  of_mu = f' (μ = {rounding.up(guarantee["mu"], 6)})' if 'mu' in guarantee else ''
  bound, delta = rounding.up(guarantee['epsilon'], 15), rounding.up(guarantee['delta'], 15)
  return f'ε = {bound} at δ = {delta}{of_mu} per client, {planned}'


def _spent_in_rounds(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Rows on what clients have spent in the rounds that ran, where these are public."""
  achieved, came = certificate['achieved'], _came(certificate)
  reading, most_rounds = (_READING_OF_COHORTS, 'at most ') if came else (_READING, '')
  most = f'ε = {rounding.up(achieved["epsilon_max"], 6)} (μ = {rounding.up(achieved["mu_max"], 6)})'
  return [
    *([reading] if achieved['is_reading'] else []),
    ('Largest spent', most),
    ('Clients', f'{achieved["clients"]:,}, of which {achieved["clients_that_took_part"]:,} took part'),
    ('Weight 0 in a round', f'{achieved["clients_with_a_weight_of_0"]:,} clients, which added nothing there'),
    ('Rounds', f'{achieved["rounds"]:,} of {most_rounds}{achieved["planned_rounds"]:,} planned'),
  ]


def _spent_by_rate(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
  """Rows on what clients of each rate spend in all planned rounds, where cohorts are secret."""
  achieved, known = certificate['achieved'], certificate['guarantee']['epsilon_if_coins_become_known']
  rows = []
  for one in achieved['rates']:
    clients = f'{one["clients"]:,} clients of weight {one["weight"]:.6g}'
    rows.append((f'Rate {one["rate"]:.6g}', f'ε = {rounding.up(one["epsilon"], 6)} for {clients}'))
  return [
    ('Largest', f'ε = {rounding.up(achieved["epsilon_max"], 6)}'),
    ('If coins become known', f'ε = {rounding.up(known, 6)} for a client that was drawn in every round'),
    *rows,
    ('Clients', f'{achieved["clients"]:,}'),
    ('Rounds', f'{achieved["planned_rounds"]:,} planned'),
  ]


def _came(certificate: Mapping[str, Any]) -> bool:
  """True if the cohorts are certified as they came."""
  return certificate['guarantee']['cohorts'] == run_account.AS_THEY_CAME


def _digests(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
  provenance = certificate['provenance']
  rows = [('Program that wrote it', _program(provenance['code']))]
  for stretch in certificate['issuer']['stretches']:
    name = f'Program of rounds {stretch["first_round"]:,} to {stretch["last_round"]:,}'
    rows.append((name, _program(stretch['code'])))
  rows += provenance['files_sha256'].items()
  rows.append(('This certificate', certificate['sha256']))
  return rows


def _program(code: Mapping[str, str]) -> str:
  return f'quap_tff {code["quap_tff"]}, source {code["source_sha256"]}'


def _across(epsilon: float, edges: Sequence[float]) -> float:
  """The place of an ε on the histogram's axis."""
  return _LEFT + _WIDTH * (epsilon - edges[0]) / (edges[-1] - edges[0])


def _only_bar(achieved: Mapping[str, Any]) -> str:
  """The sentences in place of a histogram in which all clients are in one bar."""
  ended = ' when the run ended: a reading' if achieved['is_reading'] else ''
  most, least = (rounding.up(achieved['epsilon_quantiles'][share], 6) for share in ('1', '0'))
  text = f'Each of the {achieved["clients"]:,} clients has spent ε ≤ {most}{ended}.'
  return text if least == most else f'{text} The client that spent least has spent ε ≤ {least}.'


def _bars(edges: Sequence[float], clients: Sequence[int]) -> list[dict[str, str]]:
  """The histogram's bars. Each count is above its bar, so that nobody has to compare shades."""
  bars, largest = [], max([*clients, 1])
  for low, high, count in zip(edges, edges[1:], clients):
    left, right, height = _across(low, edges), _across(high, edges), _HEIGHT * count / largest
    if count:
      place = {
        'left': left + 1,
        'top': _BOTTOM - height,
        'width': right - left - 2,
        'height': height,
        # The count is upright, because bars are narrower than their counts are long.
        'middle': (left + right) / 2 + 5,
        'above': _BOTTOM - height - 4,
      }
      # No longer than the space above a bar.
      short = f'{count}' if count < 10_000 else f'{count / 1000:.0f}k'
      bars.append({**{name: f'{value:.1f}' for name, value in place.items()}, 'count': short})
  return bars
