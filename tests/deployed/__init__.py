"""``python -m tests.deployed``: the files of ``deploy/`` run for real, by Docker with Compose, by what a kubelet does,
and by systemd.

::

    make deployed                       all, some minutes; the first time makes trees of Debian (make_roots.sh)
    make deployed PARTS="compose"       a part: compose, spark, kubernetes, systemd

No registry of images is needed: Docker and systemd come from Debian's packages, and trees of Debian 13 stand in for the
images that the files name. Needs root on Debian, ``kubectl``, and Debian's and Python's packages. Nothing outside of
``build/deployed`` is changed, and nothing goes on running.

* ``engine`` starts Docker, ``compose`` checks image and compose file.
* ``spark`` runs the image for drivers and executors in docs/deployment.md beside it.
* ``kubelet`` starts pods by their manifests in containers, ``kubernetes`` checks a cluster of them.
* ``host`` starts systemd, ``unit`` checks the unit in it, by the commands of ``docs/deployment.md``.
* ``report`` prints a line for each check, ``control_groups`` leaves none behind.
"""
