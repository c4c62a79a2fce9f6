"""Spark's Python workers collect garbage after each task: what a worker has imported is left out.

A worker holds a hundred thousand objects of modules, which live as long as the process. To search them takes 50 ms of
CPU after each task, more than a small task itself.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def keep_objects() -> None:
    """Take all objects of this process out of the search for garbage, when it is first called. Call it in a task, when
    all modules are imported.

    Objects are freed as before when nothing refers to them. Cycles of objects that exist now are never freed: what one
    task leaves behind.
    """
    gc.freeze()
