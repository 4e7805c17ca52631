# Verified I/O over block sizes and depths. fio writes at random, then reads and compares checksums.
. /guest/lib.sh
block=$(cat /sys/block/nvme0n1/queue/logical_block_size)
disk_mib=$(($(cat /sys/block/nvme0n1/size) / 2048))
region_mib=$((disk_mib < 16 ? disk_mib : 16))

cat >/tmp/io.fio <<J
[global]
filename=/dev/nvme0n1
ioengine=io_uring
direct=1
rw=randwrite
verify=crc32c
verify_fatal=1
verify_dump=0
do_verify=1
group_reporting=1
J
for size in 512 4096 12288 65536 131072 524288 1048576; do
    [ $size -ge "$block" ] || continue
    # About 1,024 blocks, or the region twice.
    bytes=$((size * 1024))
    limit=$((region_mib * 1024 * 1024))
    [ $bytes -le $limit ] || bytes=$limit
    bytes=$((bytes / size * size))
    for depth in 1 4 16 64; do
        printf '[bs%s-qd%s]\nstonewall\nbs=%s\niodepth=%s\nsize=%s\n' $size $depth $size $depth $bytes >>/tmp/io.fio
    done
done
fio --eta=never --output=/tmp/io.log --output-format=terse /tmp/io.fio || { tail -n 40 /tmp/io.log; fail "fio found a difference"; }
jobs=$(grep -c '^3;fio' /tmp/io.log)
[ "$jobs" -ge 24 ] || { tail -n 20 /tmp/io.log; fail "only $jobs jobs of fio ran"; }
value fio_jobs "$jobs"

# Mixed reads and writes from both processors, buffers at odd offsets in their pages.
fio --eta=never --name=mixed --filename=/dev/nvme0n1 --ioengine=libaio --direct=1 --rw=randrw --bsrange=4k-128k \
    --iodepth=32 --numjobs=2 --size=$((region_mib / 2))m --offset_increment=$((region_mib / 2))m \
    --verify=crc32c --verify_fatal=1 --iomem_align=512 --output=/tmp/mixed.log ||
    { tail -n 40 /tmp/mixed.log; fail "fio found a difference in mixed I/O"; }

# Flush, discard, zeroes; and a file system on top.
blkdiscard /dev/nvme0n1 || fail "discard failed"
# By its path: busybox has a smaller program of that name.
/usr/sbin/mke2fs -q -F -t ext4 /dev/nvme0n1
mkdir -p /tmp/disk
mount -t ext4 /dev/nvme0n1 /tmp/disk
dd if=/dev/urandom of=/tmp/disk/a bs=1M count=8 2>/dev/null
cp /tmp/disk/a /tmp/disk/b
sync
umount /tmp/disk
e2fsck -f -n /dev/nvme0n1 >/tmp/fsck.log 2>&1 || { cat /tmp/fsck.log; fail "the file system is damaged"; }
mount -t ext4 /dev/nvme0n1 /tmp/disk
cmp /tmp/disk/a /tmp/disk/b || fail "a file differs from its copy"
umount /tmp/disk
no_complaint
