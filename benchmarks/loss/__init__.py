"""What the cross-entropy takes, with all logits at once and in parts.

live_bytes   bytes of tensors that are alive, counted operation by operation
sizes        the loss alone: predicted and held, at several sizes
"""
