"""QuAP-FL's mechanism and what is built around it."""
