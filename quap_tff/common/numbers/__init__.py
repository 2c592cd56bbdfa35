"""Numbers: rounding, seeds, NumPy or TensorFlow arrays, trade-off functions, samplers."""
