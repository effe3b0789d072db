# Boots a container with systemd: ROOT PACKAGE MANIFESTS. It has separate mounts: the unified cgroup hierarchy, even on a host without it, and no
# pins of other programs.
umount --recursive /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mount -t bpf bpf /sys/fs/bpf
mkdir -p /sys/fs/cgroup/tortie-trial
echo $$ >/sys/fs/cgroup/tortie-trial/cgroup.procs
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
# Containers may not call bpf(2) unless the filter names it.
exec systemd-nspawn --quiet --boot --directory "$1" --volatile=overlay --machine=tortie-trial --register=no --keep-unit \
    --private-network --capability=all --system-call-filter='@known bpf' --console=pipe \
    --bind=/sys/fs/bpf --bind-ro="$2:/opt/tortie.deb" --bind-ro="$3:/opt/demo"
