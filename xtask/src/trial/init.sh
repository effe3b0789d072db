#!/bin/busybox sh
# First process of the tested kernel: mounts the files of this machine as its root and starts the command. A failure here ends this process
# and thereby the kernel.
set -eu
PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /lower /upper /root
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
# This line proves that the kernel runs.
echo "try-kernel: $(uname -r) runs"
if grep -q try-kernel.probe /proc/cmdline; then
    poweroff -f
fi
. /settings
for module in /modules/*; do
    insmod "$module"
done

# Writes do not reach the machine. 9p caches read files, because no process writes to them.
share=trans=virtio,version=9p2000.L,msize=500000
mount -t 9p -o $share,cache=loose,ro root /lower
mount -t tmpfs -o size=75% tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root
release=$(uname -r)
mkdir -p "/root/lib/modules/$release"
mount --bind "/root$MODULES" "/root/lib/modules/$release"
mount -t tmpfs -o mode=755 tmpfs /root/run
# The command may be below /tmp.
case $FOLDER/ in
    /tmp/*) ;;
    *) mount -t tmpfs -o mode=1777 tmpfs /root/tmp ;;
esac
if [ "$KEEP" ]; then
    mkdir -p "/root$KEEP"
    mount -t 9p -o $share,cache=none keep "/root$KEEP"
fi

mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
for stream in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${stream%:*}" "/dev/${stream#*:}"
done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf -o mode=700 bpf /sys/fs/bpf
mount -t debugfs debugfs /sys/kernel/debug
mount -t tracefs tracefs /sys/kernel/tracing
for folder in proc sys dev; do
    mkdir -p "/root/$folder"
    mount --move "/$folder" "/root/$folder"
done
ip link set lo up
hostname try-kernel

mkdir /root/run/try-kernel
cp /bin/busybox /command /start /root/run/try-kernel
# The kernel looks for modprobe in the root of its first process.
exec switch_root /root /run/try-kernel/busybox sh /run/try-kernel/start
