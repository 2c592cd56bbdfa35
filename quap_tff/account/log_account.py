"""The account of a log: what each of its clients has spent."""

from typing import Optional

from quap_tff.account import findings
from quap_tff.accounting import accountants
from quap_tff.accounting import coins
from quap_tff.accounting import log_report
from quap_tff.accounting import logs
from quap_tff.common import checks
from quap_tff.common.numbers import rounding
from quap_tff.mechanisms.noise import correlation as correlations


def account_log(
  log: str,
  noise_multiplier: float,
  delta: float,
  *,
  epsilon: Optional[float] = None,
  rounds: Optional[int] = None,
  sampling_rate: Optional[float] = None,
  correlation: correlations.Correlation = correlations.Independent(),
  output_dir: Optional[str] = None,
) -> findings.Finding:
  """The spending of each client of a log, and the figures of the usual accountants for the same log.

  Args:
    log: The path of the log.
    noise_multiplier: z of each round.
    delta: The total δ.
    epsilon: The ε that nobody may exceed; None if there is no bound.
    rounds: The planned rounds; None for those of the log.
    sampling_rate: The q of the coins by which clients are assumed to be drawn. None: no amplified figures.
    correlation: The correlation of the noise, with all its numbers.
    output_dir: Folder for tables, figure and page; None to write none.

  Raises:
    ValueError: For a value that is out of range, a log that cannot be read, or a folder that cannot be written.
  """
  checks.number('delta', delta, above=0, below=1)
  factors = {'at_least': accountants.MIN_FACTOR, 'at_most': accountants.MAX_FACTOR}
  checks.number('noise_multiplier', noise_multiplier, **factors)
  if epsilon is not None:
    checks.number('epsilon', epsilon, above=0)
  if sampling_rate is not None:
    checks.number('sampling_rate', sampling_rate, above=0, at_most=1)
  if rounds is not None:
    checks.integer('rounds', rounds, at_least=1)
  rows = logs.Log(log)
  with findings.system_errors_name(log, 'read'):
    account = logs.account(rows, noise_multiplier, correlation, rounds)
    assumed = None if sampling_rate is None else coins.Coins.of(rows, sampling_rate)
  if not account.names:
    raise ValueError(f'{log} names no client: nobody has spent anything. Give a log in which somebody came.')
  report = log_report.report(account, noise_multiplier, delta, epsilon, correlation, assumed)
  noise = correlations.spec_of(correlation)
  head = [
    f'{len(account.names):,} clients, {int(account.counts.sum()):,} participations in {account.num_rounds:,} rounds. '
    f'z = {noise_multiplier:.15g}, total δ = {rounding.up(delta, 6)}, noise: {noise}.',
    log_report.STATEMENT,
  ]
  if delta * len(account.names) > 1:
    head.append('Warning: δ is above 1/N. A program that publishes the data of a client drawn at random has such a δ.')
  if epsilon is not None:
    head.append(_finding(report, epsilon))
  warnings = []
  if output_dir is not None:
    with findings.system_errors_name(f'--output_dir={output_dir}', 'written'):
      warnings = log_report.write_report(output_dir, report, head)
  text = '\n'.join([*head, '', log_report.tables_text(report.tables)])
  values = log_report.summary(report)
  values.update(noise_multiplier=noise_multiplier, delta=delta, correlation=noise)
  return findings.Finding(text, values, is_over=report.over > 0, warnings=warnings)


def _finding(report: log_report.LogReport, epsilon: float) -> str:
  if not report.over:
    return f'Nobody has spent more than ε = {rounding.up(epsilon, 7)}.'
  num_clients, bound = len(report.epsilon), rounding.down(epsilon, 7)
  return f'OVER: {report.over:,} of {num_clients:,} clients have spent more than ε = {bound}.'
