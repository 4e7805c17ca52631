# Keeps the disk busy between two looks that the host takes at the server's counters.
. /guest/lib.sh
wait_until 20 test -b /dev/nvme0n1
ask begin >/dev/null
fio --eta=never --name=busy --filename=/dev/nvme0n1 --ioengine=io_uring --direct=1 --rw=randread --bs=4k --iodepth=32 \
    --number_ios=20000 --size=32m --loops=3 --output-format=terse --output=/tmp/busy.log || fail "fio failed"
ask end >/dev/null
value iops "$(cut -d';' -f8 /tmp/busy.log | head -n 1)"
no_complaint
