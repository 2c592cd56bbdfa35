"""Lower bounds on ε, which verification computes again. Nothing here imports TensorFlow."""
