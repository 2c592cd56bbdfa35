"""The options of every plan, whatever its mechanism: what is published, and how."""

from __future__ import annotations

import dataclasses
from typing import Optional, Protocol

from quap_tff.mechanisms import sparsity as sparsities
from quap_tff.mechanisms.parts import layers
from quap_tff.mechanisms.parts import postprocessing


class AccountedExtension(Protocol):
  """The facts that an account needs of a method around the mechanism, a `quap_tff.training.extension.Extension`.

  Attributes:
    name: The method's name, for messages.
    statement: The method's effect on privacy, in a sentence or two.
    exact_releases: Exact functions of clients' data that the mechanism does not release and the method does.
  """

  @property
  def name(self) -> str: ...

  @property
  def statement(self) -> str: ...

  @property
  def exact_releases(self) -> tuple[str, ...]: ...


@dataclasses.dataclass(frozen=True)
class StatedExtension:
  """The facts of an extension that an account needs, without the class, which may be in a program of its own."""

  name: str
  statement: str
  exact_releases: tuple[str, ...]

  @classmethod
  def of(cls, extension: Optional[AccountedExtension]) -> Optional[StatedExtension]:
    """The facts of an extension, if there is one."""
    if extension is None:
      return None
    return cls(extension.name, extension.statement, tuple(extension.exact_releases))


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PlanOptions:
  """The options of every plan, whatever its mechanism.

  Attributes:
    averaging: The average of the iterates that is published. A certified plan chooses its noise for it.
    client_metrics: Whether exact functions of clients' data (training loss, norms) are released with the model. By
      default (None) they are, unless the run is certified, or each client noises all that it sends.
    test_is_of_clients: Whether models are tested on examples of the clients themselves, and the figures released.
    model: The model's shape; None before it is known.
    extension: A method around the mechanism; by default none.
    sparsity: Which part of the weights a round updates.
    sparsity_seed: The public seed of that choice.
    own_updates: Whether a program of the issuer's own computes the updates of clients, so that nothing is known of how
      they follow from data. `quap_tff.Plan.build_update_process` sets it.
  """

  averaging: postprocessing.Averaging = postprocessing.LastIterate()
  client_metrics: Optional[bool] = None
  test_is_of_clients: bool = False
  model: Optional[layers.ModelShape] = None
  extension: Optional[AccountedExtension] = None
  sparsity: sparsities.Sparsity = sparsities.NotSparse()
  sparsity_seed: int = 0
  own_updates: bool = False
