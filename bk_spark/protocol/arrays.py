"""Types of the columns of a batch of entries. A column has one value for each entry, or one for each byte.

Lengths and ids are signed, as in Java's formats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
