# The host makes a virtio disk larger under the running guest, which sees it by itself.
. /guest/lib.sh
insmod /guest/virtio_blk.ko
wait_until 10 test -b /dev/vda
size_is() {
    [ "$(blockdev --getsize64 /dev/vda)" = "$1" ]
}
size_is 67108864 || fail "the disk has $(blockdev --getsize64 /dev/vda) bytes"
dd if=/dev/urandom of=/tmp/mark bs=64k count=16 2>/dev/null
dd if=/tmp/mark of=/dev/vda bs=64k seek=1008 oflag=direct 2>/dev/null
dd if=/tmp/mark of=/dev/vda bs=64k seek=1024 oflag=direct 2>/dev/null && fail "there is something behind the end"

ask resize >/dev/null
wait_until 10 size_is 100663296
dd if=/dev/vda of=/tmp/read bs=64k count=16 skip=1008 iflag=direct 2>/dev/null
cmp /tmp/mark /tmp/read || fail "growing the disk changed its data"
dd if=/tmp/mark of=/dev/vda bs=64k seek=1520 oflag=direct 2>/dev/null || fail "the new part can't be written"
dd if=/dev/vda of=/tmp/read bs=64k count=16 skip=1520 iflag=direct 2>/dev/null
cmp /tmp/mark /tmp/read || fail "the new part lost what was written"
dmesg | grep -q 'vda: detected capacity change from 131072 to 196608' || fail "the kernel says nothing of it"
no_complaint
