"""Excludes what a worker has imported from the garbage collection that Spark's Python workers run after each task.

A worker holds a hundred thousand objects of modules, which live as long as the process. Searching them takes 50 ms of
CPU after each task, more than a small task itself.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def keep_objects() -> None:
    """Exclude all present objects of this process from garbage collection, at the first call. Call it in a task, when
    all modules are imported.

    Objects are freed as before when nothing refers to them. Only cycles that exist now, those of one task, are never
    freed.
    """
    gc.freeze()
