# A virtio disk that comes and goes, three times. Pulled out while it is idle; what was written is there again.
. /guest/lib.sh
insmod /guest/virtio_blk.ko
gone() { [ ! -e /sys/block/vda ]; }
for round in 1 2 3; do
    ask plug >/dev/null
    wait_until 20 test -b /dev/vda
    [ "$(cat /sys/block/vda/size)" = 131072 ] || fail "size $(cat /sys/block/vda/size)"
    if [ $round -gt 1 ]; then
        cmp -n 1048576 /tmp/mark /dev/vda || fail "the disk lost what was written before round $round"
    fi
    fio --eta=never --name=verify --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite --bsrange=4k-64k \
        --iodepth=16 --size=8m --offset=16m --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 \
        --output=/tmp/verify.log || { tail -n 40 /tmp/verify.log; fail "fio found a difference"; }
    dd if=/dev/urandom of=/tmp/mark bs=64k count=16 2>/dev/null
    dd if=/tmp/mark of=/dev/vda bs=64k count=16 oflag=direct conv=fsync 2>/dev/null
    ask unplug >/dev/null
    wait_until 20 gone
done
dmesg | grep -i -E 'vda.*(error|timeout)|virtio.*(error|fail)|I/O error' && fail "the kernel complains"
no_complaint 'AER: enabled'
