# A virtio disk with several queues: verified I/O, flush, discard, zeroes, a file system. Every line of the
# configuration space that the driver shows is looked at.
. /guest/lib.sh
insmod /guest/virtio_blk.ko
wait_until 10 test -b /dev/vda
queue=/sys/block/vda/queue
[ "$(cat $queue/logical_block_size)" = 512 ] || fail "block size $(cat $queue/logical_block_size)"
[ "$(cat /sys/block/vda/size)" = 131072 ] || fail "size $(cat /sys/block/vda/size)"
[ "$(cat $queue/write_cache)" = "write back" ] || fail "cache $(cat $queue/write_cache)"
[ "$(cat /sys/block/vda/serial)" = doorbell ] || fail "serial $(cat /sys/block/vda/serial)"
[ "$(ls /sys/block/vda/mq | wc -l)" = 2 ] || fail "$(ls /sys/block/vda/mq | wc -l) queues"
for limit in discard_max_bytes write_zeroes_max_bytes; do
    [ "$(cat $queue/$limit)" -gt 0 ] || fail "$limit is $(cat $queue/$limit)"
done

# The test may kill the server meanwhile, as often as it likes.
ask verify begins >/dev/null
fio --eta=never --name=verify --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite --bsrange=4k-128k \
    --iodepth=32 --numjobs=2 --size=24m --offset_increment=24m --loops=3 --verify=crc32c --verify_fatal=1 \
    --verify_dump=0 --do_verify=1 --output=/tmp/verify.log ||
    { tail -n 40 /tmp/verify.log; fail "fio found a difference"; }
ask verify ends >/dev/null

blkdiscard /dev/vda || fail "discard failed"
blkdiscard -z /dev/vda || fail "write zeroes failed"
cmp -n 1048576 /dev/vda /dev/zero || fail "zeroes aren't zero"
/usr/sbin/mke2fs -q -F -t ext4 /dev/vda
mkdir -p /tmp/disk
mount -t ext4 /dev/vda /tmp/disk
dd if=/dev/urandom of=/tmp/disk/a bs=1M count=8 2>/dev/null
cp /tmp/disk/a /tmp/disk/b
sync
umount /tmp/disk
e2fsck -f -n /dev/vda >/tmp/fsck.log 2>&1 || { cat /tmp/fsck.log; fail "the file system is damaged"; }
mount -t ext4 /dev/vda /tmp/disk
cmp /tmp/disk/a /tmp/disk/b || fail "a file differs from its copy"
umount /tmp/disk
dmesg | grep -i -E 'vda.*(error|timeout)|virtio.*(error|fail)|I/O error' && fail "the kernel complains"
no_complaint
