# The guest was started with pci=nomsi: completions are announced by the shared pin, and it still works.
. /guest/lib.sh
wait_until 20 test -b /dev/nvme0n1
line=$(grep -E 'nvme0q' /proc/interrupts)
echo "$line"
case $line in
*fasteoi*) ;;
*) fail "the driver does not use INTx" ;;
esac
before=$(awk '/nvme0q/ { sum += $2 + $3 } END { print sum }' /proc/interrupts)
fio --eta=never --name=pin --filename=/dev/nvme0n1 --ioengine=io_uring --direct=1 --rw=randwrite --bs=4k \
    --iodepth=16 --size=4m --verify=crc32c --verify_fatal=1 --output=/tmp/pin.log ||
    { tail -n 30 /tmp/pin.log; fail "fio found a difference"; }
raised=$(($(awk '/nvme0q/ { sum += $2 + $3 } END { print sum }' /proc/interrupts) - before))
value intx_interrupts $raised
[ $raised -gt 20 ] || fail "2,048 commands raised $raised interrupts"
no_complaint
