#!/bin/bash
# make_roots.sh DIRECTORY JARS PYSPARK: trees of Debian 13 in DIRECTORY, for tests.deployed. Needs root and Debian's packages; no
# registry of images.
#   engine     Docker with Compose
#   python     stands in for the image python:3.13-slim
#   zookeeper  stands in for the image zookeeper:3.9, with the jars in JARS
#   spark      stands in for the image apache/spark, with the files of the Python package in PYSPARK
#   host       a host with systemd, Python, Java and the same jars
# Each is made once: remove DIRECTORY to have them anew.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "this needs root: chroot, mounts and namespaces" >&2; exit 1; }
command -v debootstrap >/dev/null || {
    echo "missing: debootstrap - installing it with apt-get" >&2
    apt-get install -y -qq --no-install-recommends debootstrap >&2
}
here=$(cd "$(dirname "$0")" && pwd)
jars=$(cd "$2" && pwd)
pyspark=$(cd "$3" && pwd)
mkdir -p "$1"
cd "$1"
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# tree NAME FROM PACKAGE...: NAME is FROM with packages.
tree() {
    local name=$1 from=$2
    shift 2
    [ ! -e "$name.made" ] || return 0
    echo "making $name" >&2
    rm -rf "$name"
    cp -a "$from" "$name"
    mount -t proc proc "$name/proc"
    trap "umount '$PWD/$name/proc'" EXIT
    # What is installed does not start.
    printf '#!/bin/sh\nexit 101\n' > "$name/usr/sbin/policy-rc.d"
    chmod 755 "$name/usr/sbin/policy-rc.d"
    chroot "$name" apt-get install -y -qq --no-install-recommends "$@" >&2
    chroot "$name" apt-get clean
    umount "$name/proc"
    trap - EXIT
    rm "$name/usr/sbin/policy-rc.d"
    # A machine behind a proxy reaches PyPI with its own settings and certificates.
    cp /etc/ssl/certs/ca-certificates.crt "$name/etc/ssl/certs/" 2>/dev/null || true
    cp /etc/pip.conf "$name/etc/pip.conf" 2>/dev/null || true
    "add_to_$name"
    touch "$name.made"
}

add_to_engine() {
    mkdir -p engine/old
}

# The image's Python is not Debian's, and pip may install into it.
add_to_python() {
    rm -f python/usr/lib/python3*/EXTERNALLY-MANAGED
    for each in python python3 python3.13; do
        ln -sfT /usr/bin/python3.13 "python/usr/local/bin/$each"
    done
}

# What the image has and the files of deploy/ use: its variables, its user, its directories, and nc.
add_to_zookeeper() {
    mkdir -p zookeeper/zookeeper zookeeper/conf zookeeper/data zookeeper/datalog zookeeper/logs
    cp "$jars"/*.jar zookeeper/zookeeper/
    install -m 755 "$here/zookeeper_entrypoint.sh" zookeeper/docker-entrypoint.sh
    chroot zookeeper groupadd --system --gid 1000 zookeeper
    chroot zookeeper useradd --system --gid zookeeper --uid 1000 zookeeper 2>/dev/null
    chroot zookeeper chown zookeeper:zookeeper /conf /data /datalog /logs
}

add_to_host() {
    mkdir -p host/old host/zookeeper
    cp "$jars"/*.jar host/zookeeper/
    # What they would change are settings of the whole machine.
    for unit in systemd-sysctl systemd-modules-load; do
        ln -sf /dev/null "host/etc/systemd/system/$unit.service"
    done
}

[ -e base.made ] || {
    echo "making base" >&2
    rm -rf base
    debootstrap --variant=minbase --include=ca-certificates,netbase,tzdata trixie base >&2
    chroot base apt-get update -qq >&2
    touch base.made
}
tree engine base docker.io docker-cli docker-buildx docker-compose iptables
tree python base python3.13 python3-pip python3-venv
tree zookeeper base openjdk-21-jre-headless gosu netcat-openbsd
[ -e spark.made ] || {
    echo "making spark" >&2
    rm -rf spark
    mkdir -p spark/opt/spark/python/pyspark spark/opt/spark/work-dir
    cp -a "$pyspark"/jars "$pyspark"/bin "$pyspark"/sbin spark/opt/spark/
    cp -a "$pyspark"/python/lib spark/opt/spark/python/
    tar -C "$pyspark" -c --exclude=./jars --exclude=./python --exclude=__pycache__ . |
        tar -C spark/opt/spark/python/pyspark -x
    # The image's own starts processes of Kubernetes, too.
    printf '#!/bin/sh\nexec "$@"\n' > spark/opt/entrypoint.sh
    chmod 755 spark/opt/entrypoint.sh
    touch spark/opt/decom.sh spark.made
}
tree host base systemd dbus openjdk-21-jre-headless python3 python3-venv curl
