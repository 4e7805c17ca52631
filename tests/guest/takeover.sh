# Firmware has used the disk before, and read this system from it if the kernel was told so. The host counts boots; the disk keeps its data over each of them.
. /guest/lib.sh
if grep -q doorbell.efi /proc/cmdline; then
    [ -d /sys/firmware/efi ] || fail "this system wasn't started by EFI firmware"
fi
insmod /guest/virtio_blk.ko
wait_until 20 test -b /dev/vda
[ "$(ls /sys/block/vda/mq | wc -l)" = 2 ] || fail "$(ls /sys/block/vda/mq | wc -l) queues"
# Behind the file system, which ends before the disk does.
boot=$(ask boot)
end=$(($(cat /sys/block/vda/size) - 8))
if [ "$boot" -gt 1 ]; then
    found=$(dd if=/dev/vda bs=512 count=1 skip=$end iflag=direct 2>/dev/null | head -n 1 | tr -d '\0')
    [ "$found" = "boot $((boot - 1))" ] || fail "the disk says '$found' in boot $boot"
fi
{ echo "boot $boot"; dd if=/dev/zero bs=512 count=1 2>/dev/null; } | dd of=/tmp/sector bs=512 count=1 iflag=fullblock 2>/dev/null
dd if=/tmp/sector of=/dev/vda bs=512 seek=$end oflag=direct conv=fsync 2>/dev/null
# Every processor's queue, at a depth that makes both of them work.
for cpu in 0 1; do
    taskset $((cpu + 1)) dd if=/dev/vda of=/dev/null bs=64k count=64 skip=$((cpu * 64)) iflag=direct 2>/dev/null &
done
wait
dmesg | grep -i -E 'vda.*(error|timeout)|virtio.*(error|fail)|I/O error' && fail "the kernel complains"
no_complaint
if [ "$(ask again)" = yes ]; then
    reboot -f
    sleep 60
    fail "the machine did not reboot"
fi
