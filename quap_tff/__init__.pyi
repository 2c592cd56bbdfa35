"""The names of `__init__.py`, which imports them when they are first used, for type checkers."""

from quap_tff import certificates as certificates
from quap_tff import runtime as runtime
from quap_tff.accounting.gate import Gate as Gate
from quap_tff.bundle.player import Bundle as Bundle
from quap_tff.exporting.export import export as export
from quap_tff.federated.client_ids import with_ids as with_ids
from quap_tff.mechanisms.certified.config import CertifiedConfig as CertifiedConfig
from quap_tff.mechanisms.held.config import HeldConfig as HeldConfig
from quap_tff.mechanisms.held.guard import ClientGuard as ClientGuard
from quap_tff.mechanisms.quap.config import QuapConfig as QuapConfig
from quap_tff.plans.front_door import certified as certified
from quap_tff.plans.front_door import quap as quap
from quap_tff.plans.plan import Plan as Plan
from quap_tff.plans.public_rule import public_constants as public_constants
from quap_tff.serving.server import Server as Server
from quap_tff.training import models as models
from quap_tff.training.client_update import ClientWorkConfig as ClientWorkConfig

__version__: str
