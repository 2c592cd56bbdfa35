"""Facts about a mechanism as data, so that nobody asks which class it is."""

from __future__ import annotations

from typing import NamedTuple, Optional, Protocol

from quap_tff.common.lazy import tf
from quap_tff.mechanisms.noise import correlation as correlations
from quap_tff.mechanisms.parts import layers as layers_lib


class StalenessModel(Protocol):
  """A distribution of how old the versions are that clients train on."""

  @property
  def max_staleness(self) -> int: ...

  def of(self, round_num: tf.Tensor, client_id: tf.Tensor, num_versions: tf.Tensor) -> tf.Tensor: ...


class Facts(NamedTuple):
  """Facts about a mechanism.

  Attributes:
    delta: δ of one round in nominal figures, and total δ in formal ones.
    public_metrics: Names of the measurements that are not exact functions of clients' data: they follow from who takes
      part, from constants and from noised releases.
    adds_noise: Whether there is noise at all.
    noise_seed: The given seed of the noise, which makes it public; None if it is drawn from the operating system's
      entropy.
    exact_releases: The exact functions of clients' data that reach the released model, a clause each. With any of them
      it has no finite ε.
    noised_layers: A selection of `quap_tff.mechanisms.parts.layers`, the layers that get noise.
    clipped_layers: A selection too: the layers whose joint norm is clipped.
    waits: Why clients wait for others in mid-round, a clause; '' if a round has one level of aggregation.
    needs_each_update: Whether the server must see each client's contribution, and not only their sum.
    unsparse: Why rounds cannot update a part of the weights only, a clause; '' if they can.
    is_certified: Whether a run can end with a certificate: nobody exceeds ε, and only noised sums are released.
    game: The distinguishing game that an audit plays: 'certified', 'quap', 'stock'; '' if there is none.
    divisor: The public constant by which sums are divided; None if it is the number of clients.
    has_nominal: Whether the noise follows the budgets by the documents' formula. Only then do the sums of the budgets,
      the nominal figures, mean anything.
    noise_follows: What a round's noise multiplier depends on, see `quap_tff.common.numbers.samplers.CohortSampler`.
    correlation: How the noise of a round is correlated with that of earlier ones.
    trust: 'server' if it sees updates, 'secure_sum' if it sees only noised secure sums, 'client' if each client noises
      all that it sends, so that figures also hold against the server.
    unplannable: Why the cost of a round is not known before it has run, a clause; '' if it is known.
    unamplified: Why sampling amplifies nothing whatever the cohorts are, a clause; '' if it may.
    is_saved_before_release: Whether each round must be saved in a checkpoint before anything of it is released. A round
      that is run again with another outcome would be a second release that no account includes.
    noises_empty_rounds: Whether a round that nobody comes to releases the same noise as any other.
    needs_secret_cohorts: Whether a certified run draws its cohorts by secret coins of its own rates, and so nothing may
      be kept or shown that follows from who came.
    unexported: Why no bundle of the process can be written, a clause; '' if one can, where it compiles.
    unaudited: Why no audit can put a canary in the place of an update, a clause; '' if one can.
    staleness: How old the versions are that clients train on, a `StalenessModel`; None if all have the newest.
    trust_note: The reason why figures also hold against the server, a sentence; '' if they do not.
    noise_note: How the real noise differs from ideal noise; '' if it does not.
    note: Another sentence that must be said about the mechanism, or ''.
  """

  delta: float
  public_metrics: frozenset[str]
  adds_noise: bool = True
  noise_seed: Optional[int] = None
  exact_releases: tuple[str, ...] = ()
  noised_layers: str = layers_lib.ALL
  clipped_layers: str = layers_lib.ALL
  waits: str = ''
  needs_each_update: bool = False
  unsparse: str = ''
  is_certified: bool = False
  game: str = ''
  divisor: Optional[float] = None
  has_nominal: bool = False
  noise_follows: str = 'cohorts'
  correlation: correlations.Correlation = correlations.Independent()
  trust: str = 'server'
  unplannable: str = ''
  unamplified: str = ''
  is_saved_before_release: bool = False
  noises_empty_rounds: bool = False
  needs_secret_cohorts: bool = False
  unexported: str = ''
  unaudited: str = ''
  staleness: Optional[StalenessModel] = None
  trust_note: str = ''
  noise_note: str = 'The figures are for ideal Gaussian noise, which float64 numbers approximate.'
  note: str = ''
