#!/bin/sh
# Pid 1 of the virtual machines of script/kernels: mounts what programs expect, runs the guest's script and ends
# the machine. The kernel's console is where the results go. What is set is on the second disk.
mount -t proc proc /proc
mount -t sysfs sysfs /sys
# The folder has a static /dev, without the disks.
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp /dev/shm
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
# The loopback interface; there is no `ip` in the folder.
python3 -c '
import fcntl, socket, struct
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
'
tr -d '\000' </dev/nvme0n2 >/tmp/settings
setsid sh /snakepit/test/places/guest.sh
echo "@@ status $?"
sync
echo b >/proc/sysrq-trigger
