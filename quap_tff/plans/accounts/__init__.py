"""The account of a run, apart from its training: what verifies, plans and counts needs no more of a plan."""
