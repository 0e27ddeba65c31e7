"""The parts of `monitoring.py`: simulated streams, other detectors of a change, real images, figures."""
