"""The discriminator's fast passes on a GPU: `fuse` for training, `FastPass` for scoring.

The plain pass of `layers.py` writes and reads every activation several times, and the first convolution, whose three
channels leave the matrix units idle, writes the largest one. In scoring

- the first layer is a linear map of 27 numbers: its mean and variance over an image follow from the moments of these,
  exactly, before it is computed; then it is computed, normalised and activated in one pass;
- the others are torch's convolution without its bias, one pass for both sums, one to normalise and activate in place;
- the last normalisation happens on the way into the classifier, and is never written.

A residual network has the same first layer; its other normalisations are part of its convolutions, and one pass between
them adds bias and shortcut and activates. Inverted ones have no dense convolutions: theirs are kernels of their own, in
half precision, with bias, ReLU6 and what is added on the way out.
"""

from discopatch.model.fast.fused import fuse
from discopatch.model.fast.residual_network import FastResidual
from discopatch.model.fast.scoring import FastPass

__all__ = ["FastPass", "FastResidual", "fuse"]
