"""Calibration checks: false alarms on random splits, fits on few images, the effect of storage."""
