#!/bin/bash
# start_engine.sh ROOT REPOSITORY DATA CGROUP: become a Docker daemon whose root directory is the tree ROOT, in a mount
# namespace of its own. It sees the repository at its own path, and changes no rule of the machine's firewall.
set -euo pipefail
root=$1 repository=$2 data=$3 cgroup=$4
mount --bind "$root" "$root"
mkdir -p "$root$repository"
for each in /proc /sys /dev "$repository"; do
    mount --rbind "$each" "$root$each"
done
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
for each in /etc/resolv.conf /etc/hosts; do
    cp --remove-destination "$each" "$root$each"
done
cd "$root"
pivot_root . old
umount -l /old
exec env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin dockerd --data-root "$data" --bridge none \
    --iptables=false --ip6tables=false --ip-forward=false --cgroup-parent "$cgroup" --log-level warn
