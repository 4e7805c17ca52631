# What the scripts share. Each begins with `. /guest/lib.sh` and ends with 0 when all is well.
set -eu

# Ends the script with a reason.
fail() {
    echo "FAILED: $*"
    exit 1
}

# Asks the host and prints its answer. The host may do something before it answers.
ask() {
    echo "GUEST-ASK: $*" >/dev/console
    read -r answer </dev/console
    case $answer in
    error*) echo "FAILED: the host answered: $answer" >/dev/console; return 1 ;;
    esac
    echo "$answer"
}

# Hands a number to the test.
value() {
    echo "GUEST-VALUE: $1 $2"
}

# Waits up to $1 seconds until the rest, a command, succeeds.
wait_until() {
    left=$(($1 * 10))
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || fail "this never became true: $*"
        sleep 0.1
    done
}

# The PCI function of nvme0.
function_of_nvme0() {
    basename "$(readlink -f /sys/class/nvme/nvme0/device)"
}

# Whether the known-good device of QEMU is in use, of which one message is expected.
emulated() {
    grep -q doorbell.emulated /proc/cmdline
}

# Fails if the kernel has complained about the controller, or about itself. `expected` may hold a pattern.
no_complaint() {
    expected=${1:-^$}
    emulated && expected="$expected|Ignoring bogus Namespace Identifiers"
    about_nvme='nvme.*(polled|time.?out|timed|abort|fail|error|invalid|bogus|unsupported|disabl|remov|missing|not ready|reset)'
    about_itself='WARNING: |BUG: |Oops: |Call Trace:|blocked for more|DMAR: |AER: |soft lockup|nobody cared|Disabling IRQ|rcu.*stall'
    dmesg | grep -v -E "$expected" >/tmp/messages
    complaints=$({ grep -i -E "$about_nvme" /tmp/messages; grep -E "$about_itself" /tmp/messages; } || true)
    [ -z "$complaints" ] || fail "the kernel complains:
$complaints"
}

# Interrupts that the I/O queues of nvme0 have raised so far.
interrupts() {
    awk '/nvme0q[1-9]/ { for (i = 2; i <= NF && $i ~ /^[0-9]+$/; i++) sum += $i } END { print sum + 0 }' /proc/interrupts
}

# Writes a pattern to the disk and keeps its checksum; `verify_mark` reads it back.
mark() {
    dd if=/dev/urandom of=/tmp/mark bs=64k count=16 2>/dev/null
    dd if=/tmp/mark of=/dev/nvme0n1 bs=64k count=16 seek=${1:-0} oflag=direct conv=fsync 2>/dev/null
}
verify_mark() {
    echo 3 >/proc/sys/vm/drop_caches
    dd if=/dev/nvme0n1 of=/tmp/read bs=64k count=16 skip=${1:-0} iflag=direct 2>/dev/null
    cmp /tmp/mark /tmp/read || fail "the disk lost what was written"
}
