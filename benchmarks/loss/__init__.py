"""What the cross-entropy takes and costs, with all logits at once and in parts.

live_bytes   bytes of tensors that are alive, counted operation by operation
sizes        the loss alone: predicted and held, at several sizes
steps        a training step of a small model: its time, and the most memory of its process
"""
