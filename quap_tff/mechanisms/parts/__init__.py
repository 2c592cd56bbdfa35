"""The parts of mechanisms: clip rules, budgets, layers, weights."""
