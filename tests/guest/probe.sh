# The driver finds the controller, has its queues and its interrupts, and nothing to complain about.
. /guest/lib.sh
wait_until 20 test -b /dev/nvme0n1
lspci -nn -s "$(function_of_nvme0)"
dmesg | grep -i nvme
dmesg | grep -q -E 'nvme nvme0: [1-9][0-9]*/[0-9]+/[0-9]+ default/read/poll queues' || fail "no I/O queues were set up"
[ "$(cat /sys/class/nvme/nvme0/state)" = live ] || fail "the controller is $(cat /sys/class/nvme/nvme0/state)"
[ -d "/sys/bus/pci/devices/$(function_of_nvme0)/msi_irqs" ] || fail "the driver does not use MSI-X"
value sectors "$(cat /sys/block/nvme0n1/size)"
value mdts_kb "$(cat /sys/block/nvme0n1/queue/max_hw_sectors_kb)"

before=$(interrupts)
dd if=/dev/nvme0n1 of=/dev/null bs=4k count=256 iflag=direct 2>/dev/null
raised=$(($(interrupts) - before))
value interrupts_for_256_reads $raised
[ $raised -ge 128 ] || fail "256 reads raised $raised interrupts: completions are found by polling"
no_complaint
