"""What the deep-learning kernels of the catalogue should give, by NumPy and SciPy in double precision."""

import numpy as np
from scipy import ndimage


def batch_norm_statistics(x, epsilon=1e-5):
    """Mean and inverse standard deviation (biased variance) by feature of batch x features x length."""
    wide = x.astype(np.float64)
    return wide.mean(axis=(0, 2)), 1 / np.sqrt(wide.var(axis=(0, 2)) + epsilon)


def upsample(planes, out_height, out_width):
    """Bilinear enlargement of planes x height x width, corners aligned."""
    _, height, width = planes.shape
    # A single output row is the first of the input's, not the last.
    rows = np.linspace(0, height - 1 if out_height > 1 else 0, out_height)
    columns = np.linspace(0, width - 1 if out_width > 1 else 0, out_width)
    at = np.meshgrid(rows, columns, indexing="ij")
    wide = planes.astype(np.float64)
    return np.stack([ndimage.map_coordinates(plane, at, order=1, mode="nearest") for plane in wide])


def image_to_columns(planes, window, stride, dilation):
    """Windows of planes x height x width: planes * window cells x places."""
    height, width = (dilation * (length - 1) + 1 for length in window)
    views = np.lib.stride_tricks.sliding_window_view(planes, (height, width), axis=(1, 2))
    views = views[:, ::stride, ::stride, ::dilation, ::dilation]
    return views.transpose(0, 3, 4, 1, 2).reshape(len(planes) * window[0] * window[1], -1)
