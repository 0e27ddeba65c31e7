"""The discriminator's pass for scoring on a GPU: pictures in uint8 become statistics and logits in few passes.

The plain pass writes and reads every activation several times, and the first convolution, whose three channels leave
the matrix units idle, writes the largest one. So here

- the first layer is a linear map of 27 numbers: its mean and variance over an image follow from the moments of these
  (`moments`, exact), before it is computed; then it is computed, normalised and activated in one pass;
- the others are torch's convolution without its bias, one pass for both sums, one to normalise and activate in place;
- the last normalisation happens on the way into the judgement, and is never written.

Each stage is there twice: in plain torch, to be read, tested and run on a CPU, and as a Triton kernel.
"""

from discopatch.model.fast.choose import choose_stages
from discopatch.model.fast.look import Look
from discopatch.model.fast.network import Network
from discopatch.model.fast.stages import Plain, Stages

__all__ = ["Look", "Network", "Plain", "Stages", "choose_stages"]
