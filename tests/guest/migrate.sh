# A virtio disk that fio writes and verifies while the machine moves to another QEMU, four times. Every block that
# was written before a move is read after it.
. /guest/lib.sh
insmod /guest/virtio_blk.ko
wait_until 10 test -b /dev/vda

/usr/sbin/mke2fs -q -F -t ext4 /dev/vda 18m
mkdir -p /tmp/disk
mount -t ext4 /dev/vda /tmp/disk
files="1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24"
for file in $files; do
    dd if=/dev/urandom of=/tmp/disk/$file bs=512k count=1 2>/dev/null
done
(cd /tmp/disk && md5sum $files) >/tmp/sums
sync

# Fills the page cache bit by bit, by pages that only the device writes: those that come while the machine moves and
# aren't logged are old when it has arrived.
read_slowly() {
    for file in $files; do
        cat /tmp/disk/$file >/dev/null
        sleep 0.1
    done
}

# Rounds of random writes, each read back and compared, until the last move is over.
verify() {
    rounds=0
    until [ -e /tmp/enough ]; do
        fio --eta=never --name=verify --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite \
            --bsrange=4k-64k --iodepth=16 --numjobs=2 --size=16m --offset=20m --offset_increment=20m \
            --randseed=$rounds --loops=3 --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 \
            --output=/tmp/verify.log || { touch /tmp/difference; return; }
        rounds=$((rounds + 1))
    done
    value verified-rounds $rounds >/dev/console
}
verify &
verifier=$!
sleep 2
for move in 1 2 3 4; do
    echo 3 >/proc/sys/vm/drop_caches
    read_slowly &
    reader=$!
    ask migrate >/dev/null
    kill $reader 2>/dev/null || true
    (cd /tmp/disk && md5sum -c /tmp/sums >/tmp/check 2>&1) || { cat /tmp/check; fail "memory is old after move $move"; }
    [ ! -e /tmp/difference ] || { tail -n 40 /tmp/verify.log; fail "fio found a difference in move $move"; }
    echo 3 >/proc/sys/vm/drop_caches
    (cd /tmp/disk && md5sum -c /tmp/sums >/tmp/check 2>&1) || { cat /tmp/check; fail "a file has changed in move $move"; }
    sleep 1
done
touch /tmp/enough
wait $verifier
[ ! -e /tmp/difference ] || { tail -n 40 /tmp/verify.log; fail "fio found a difference"; }
umount /tmp/disk
e2fsck -f -n /dev/vda >/tmp/fsck.log 2>&1 || { cat /tmp/fsck.log; fail "the file system is damaged"; }
dmesg | grep -i -E 'vda.*(error|timeout)|virtio.*(error|fail)|I/O error' && fail "the kernel complains"
no_complaint
