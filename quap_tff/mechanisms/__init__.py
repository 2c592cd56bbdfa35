"""What a round does, as pure functions of tensors: mechanisms and their parts. Nothing here imports TFF."""
