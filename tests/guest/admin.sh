# nvme-cli's admin and I/O commands, each of which must succeed, and some that must be refused.
. /guest/lib.sh
N=/dev/nvme0
run() {
    "$@" >/tmp/out 2>&1 || { cat /tmp/out; fail "$*"; }
}
run nvme list
run nvme id-ctrl $N
grep -E '^(vid|sn|mn|fr|ver|mdts|oacs|oncs|sgls|lpa|nn) ' /tmp/out
run nvme id-ns $N -n 1
run nvme list-ns $N
grep -q '0x1' /tmp/out || fail "namespace 1 is not listed"
run nvme ns-descs $N -n 1
grep -q -E 'uuid|eui64|nguid' /tmp/out || { cat /tmp/out; fail "the namespace has no identifier"; }
run nvme smart-log $N
run nvme error-log $N
run nvme fw-log $N
run nvme show-regs $N
grep -q -i "csts" /tmp/out || { cat /tmp/out; fail "show-regs shows no CSTS"; }
run nvme effects-log $N
run nvme changed-ns-list-log $N
emulated || run nvme supported-log-pages $N
for feature in 1 2 4 7 8 9 0xa 0xb; do
    run nvme get-feature $N -f $feature
done
run nvme get-feature $N -n 1 -f 5
# The volatile write cache is a feature where there is one.
cache=$(nvme id-ctrl $N | awk '$1 == "vwc" { print $3 }')
if [ $((cache & 1)) = 1 ]; then
    run nvme get-feature $N -f 6
fi
# A feature that is set reads back, and returns to its default at a reset.
run nvme set-feature $N -f 4 --value=0x150
run nvme get-feature $N -f 4
grep -q -i 0x0*150 /tmp/out || { cat /tmp/out; fail "the temperature threshold reads back differently"; }
run nvme reset $N
wait_until 10 grep -q live /sys/class/nvme/nvme0/state
run nvme get-feature $N -f 4
# (QEMU keeps it.)
emulated || ! grep -q -i 0x0*150 /tmp/out || fail "a feature survived a controller reset"

# I/O commands.
dd if=/dev/urandom of=/tmp/block bs=4096 count=1 2>/dev/null
size=$(cat /sys/block/nvme0n1/queue/logical_block_size)
count=$((4096 / size - 1))
run nvme write /dev/nvme0n1 -s 8 -c $count -z 4096 -d /tmp/block
run nvme read /dev/nvme0n1 -s 8 -c $count -z 4096 -d /tmp/back
cmp /tmp/block /tmp/back || fail "nvme read returns other bytes than nvme write wrote"
run nvme compare /dev/nvme0n1 -s 8 -c $count -z 4096 -d /tmp/block
! nvme compare /dev/nvme0n1 -s 64 -c $count -z 4096 -d /tmp/block >/dev/null 2>&1 || fail "compare found other bytes equal"
run nvme verify /dev/nvme0n1 -s 8 -c $count
run nvme flush $N -n 1
run nvme write-zeroes /dev/nvme0n1 -s 8 -c $count
run nvme read /dev/nvme0n1 -s 8 -c $count -z 4096 -d /tmp/back
dd if=/dev/zero of=/tmp/zero bs=4096 count=1 2>/dev/null
cmp /tmp/zero /tmp/back || fail "write zeroes left something"
run nvme dsm /dev/nvme0n1 -n 1 -a 4 -s 8 -b 8 -d 1

# Refusals: out of range, an unknown opcode, an unknown log page.
! nvme read /dev/nvme0n1 -s 0xffffffffffff -c 0 -z 4096 -d /tmp/back >/dev/null 2>&1 || fail "a read past the end succeeded"
! nvme admin-passthru $N -o 0xc8 >/dev/null 2>&1 || fail "an unknown admin command succeeded"
! nvme get-log $N -i 0xd0 -l 512 >/dev/null 2>&1 || fail "an unknown log page exists"
# The refusals above are what the kernel may mention, and the reset.
no_complaint 'resetting controller|I/O Error|Error code|critical|Admin Cmd|I/O Cmd'
