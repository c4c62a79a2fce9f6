#!/bin/bash
# start_host.sh ROOT CGROUP: become systemd on a host of its own: the tree ROOT, and namespaces of mounts, processes,
# networks, names and control groups. CGROUP is an empty control group of version 2.
set -euo pipefail
echo $$ > "$2/cgroup.procs"
exec unshare --mount --net --pid --uts --ipc --cgroup --fork --propagation private bash -euo pipefail -c '
root=$1
hostname bookie1
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
# Settings of the kernel are the machine'"'"'s.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
for each in null zero full random urandom tty; do
    touch "$root/dev/$each"
    mount --bind "/dev/$each" "$root/dev/$each"
done
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/dev/shm"
# Two addresses that are not loopback: the bookie'"'"'s and that of ZooKeeper.
ip link set lo up
ip link add host0 type bridge
ip address add 192.0.2.1/24 dev host0
ip address add 192.0.2.11/24 dev host0
ip link set host0 up
printf "127.0.0.1 localhost\n192.0.2.1 bookie1\n192.0.2.11 zk1 zk2 zk3\n" > "$root/etc/hosts"
cp --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
cd "$root"
pivot_root . old
umount -l /old
exec env -i container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=console
' start_host "$1"
