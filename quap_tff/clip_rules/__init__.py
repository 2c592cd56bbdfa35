"""Rules for the clipping norm, by name. A new rule is its own file and one line here."""

from quap_tff.clip_rules.fixed import Fixed
from quap_tff.clip_rules.private_quantile import PrivateQuantile
from quap_tff.clip_rules.quantile_ema import QuantileEma
from quap_tff.clip_rules.unclipped import Unclipped

RULES = {
    'quantile_ema': QuantileEma,
    'fixed': Fixed,
    'private_quantile': PrivateQuantile,
    'none': Unclipped,
}
