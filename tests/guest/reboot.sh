# The host counts boots. The disk keeps its data over every one of them.
. /guest/lib.sh
wait_until 20 test -b /dev/nvme0n1
boot=$(ask boot)
if [ "$boot" -gt 1 ]; then
    found=$(dd if=/dev/nvme0n1 bs=512 count=1 skip=2048 iflag=direct 2>/dev/null | head -n 1 | tr -d '\0')
    [ "$found" = "boot $((boot - 1))" ] || fail "the disk says '$found' in boot $boot"
fi
no_complaint
{ echo "boot $boot"; dd if=/dev/zero bs=512 count=1 2>/dev/null; } | dd of=/tmp/sector bs=512 count=1 iflag=fullblock 2>/dev/null
dd if=/tmp/sector of=/dev/nvme0n1 bs=512 seek=2048 oflag=direct conv=fsync 2>/dev/null
if [ "$(ask again)" = yes ]; then
    reboot -f
    sleep 60
    fail "the machine did not reboot"
fi
