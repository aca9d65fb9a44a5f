"""Calibrated skipping of the cold tier under a skewed load that shifts: how much is skipped, and what that costs."""
