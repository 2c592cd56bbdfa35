"""Bundles: rounds that TFF compiled, for TensorFlow alone.

    quap_tff.export(built, 'bundle')              with TFF, see `quap_tff.exporting`
    bundle = quap_tff.Bundle('bundle')            anywhere

Nothing here imports TFF.
"""
