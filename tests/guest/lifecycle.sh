# The device survives what an administrator does to it, and the disk keeps its data.
. /guest/lib.sh
function=$(function_of_nvme0)
device=/sys/bus/pci/devices/$function
live() {
    wait_until 20 test -b /dev/nvme0n1
    wait_until 20 grep -q live /sys/class/nvme/nvme0/state
}
mark

# Controller resets under load.
dd if=/dev/nvme0n1 of=/dev/null bs=64k iflag=direct count=4096 2>/dev/null &
for round in 1 2 3 4 5; do
    echo 1 >/sys/class/nvme/nvme0/reset_controller
    live
done
wait
verify_mark

# The driver lets go and takes it up again.
for round in 1 2 3; do
    echo "$function" >/sys/bus/pci/drivers/nvme/unbind
    [ ! -e /dev/nvme0n1 ] || fail "the disk is there without a driver"
    echo "$function" >/sys/bus/pci/drivers/nvme/bind
    live
    verify_mark
done

# Function level reset through the kernel, with the driver at work.
grep -q flr "$device/reset_method" || fail "no function level reset, only: $(cat "$device/reset_method")"
echo flr >"$device/reset_method"
for round in 1 2 3; do
    echo 1 >"$device/reset"
    live
    verify_mark
done

# The function disappears and is found again.
echo 1 >"$device/remove"
[ ! -e /dev/nvme0n1 ] || fail "the disk is there without its function"
echo 1 >/sys/bus/pci/rescan
live
verify_mark
no_complaint 'resetting controller|reset|Abort status|I/O Error|removing|remov'
