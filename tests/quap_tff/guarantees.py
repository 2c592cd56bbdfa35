"""Certified mechanisms for tests."""

from quap_tff.mechanisms.certified import config as certified
from quap_tff.mechanisms.certified import guarantee
from quap_tff.mechanisms.held import config as held
from quap_tff.mechanisms.noise import correlation as correlations


def make(**fields) -> guarantee.Guarantee:
  """The mechanism with these fields, by default over 4 clients with ε = 3 at δ = 1e-5. Clients hold `Held` noise."""
  of_held = isinstance(fields.get('correlation'), correlations.Held)
  values = dict(num_clients=4, epsilon=3.0, delta=1e-5)
  return (held.HeldConfig if of_held else certified.CertifiedConfig)(**{**values, **fields})
