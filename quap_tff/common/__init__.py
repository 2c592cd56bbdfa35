"""Parts that every room uses: numbers and their checks, errors, named choices, seeds, lazy imports."""
