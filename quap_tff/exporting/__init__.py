"""Writes bundles, which `quap_tff.bundle` plays: here is TFF, and there it is not."""
