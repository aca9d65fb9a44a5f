"""Trains a small cross-encoder on a collection's own judgements. Start reading at `mining`, then `training`."""
