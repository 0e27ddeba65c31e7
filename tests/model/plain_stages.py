"""The stages of the fast pass in plain torch, which run on any device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from discopatch.model.kernels import LEVELS, PIXEL_SCALE, Classifier, FastMBConv, PatchLayout
from discopatch.model.layers import SMALLEST_VARIANCE
from discopatch.model.patches import extract_patches


class PlainStages:
    """Takes the place of `programs`; computes in float32 wherever the result has no other type."""

    def statistics(self, x: Tensor, out: Tensor) -> None:
        variance, mean = torch.var_mean(x.reshape(len(out), -1, x.shape[3]).float(), dim=1, correction=0)
        out[:] = torch.cat((mean, torch.log(variance + SMALLEST_VARIANCE)), dim=1)

    def classify(self, x: Tensor, classifier: Classifier, out: Tensor) -> None:
        terms, cells = x.float() @ classifier.weights.float().sum(0), classifier.cells
        rows, across = (side - cells + 1 for side in x.shape[1:3])
        taps = [terms[:, i : i + rows, j : j + across, i * cells + j] for i in range(cells) for j in range(cells)]
        out[:] = (sum(taps[1:], start=taps[0]) + classifier.bias).reshape(out.shape)

    def stem(self, images: Tensor, layout: PatchLayout, kernel: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        patches = extract_patches(images, layout.corners.long(), layout.patch)
        kernel = kernel[:27].view(3, 3, 3, -1).permute(3, 2, 0, 1)
        padded = F.pad((2 * patches.float() - LEVELS) / PIXEL_SCALE, (0, 1, 0, 1))
        return F.relu6(F.conv2d(padded, kernel, bias, stride=2)).permute(0, 2, 3, 1).to(dtype).contiguous()

    def mbconv(self, x: Tensor, block: FastMBConv) -> Tensor:
        y, (filters, filter_bias), (matrix, bias) = x, block.filter, block.project
        if block.expand is not None:
            y = F.relu6(x.float() @ block.expand[0].float() + block.expand[1]).to(x.dtype)
        kernel = filters.T.reshape(-1, 1, block.taps, block.taps)
        after = block.taps - block.stride - block.before
        padded = F.pad(y.permute(0, 3, 1, 2).float(), (block.before, after) * 2)
        filtered = F.relu6(F.conv2d(padded, kernel, filter_bias, block.stride, groups=len(kernel))).permute(0, 2, 3, 1)
        projected = filtered.to(x.dtype).float() @ matrix.float() + bias
        return (projected + x.float() if block.residual else projected).to(x.dtype).contiguous()
