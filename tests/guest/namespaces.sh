# The host adds, resizes and removes namespaces under the running guest, which sees it by itself.
. /guest/lib.sh
size_is() {
    [ "$(cat /sys/block/"$1"/size)" = "$2" ]
}
before=$(cat /sys/block/nvme0n1/size)
ask add >/dev/null
wait_until 10 test -b /dev/nvme0n2
wait_until 10 size_is nvme0n2 32768
dd if=/dev/urandom of=/tmp/two bs=64k count=16 2>/dev/null
dd if=/tmp/two of=/dev/nvme0n2 bs=64k oflag=direct 2>/dev/null
dd if=/dev/nvme0n2 of=/tmp/read bs=64k count=16 iflag=direct 2>/dev/null
cmp /tmp/two /tmp/read || fail "the new namespace lost what was written"

ask resize >/dev/null
wait_until 10 size_is nvme0n2 65536
dd if=/dev/nvme0n2 of=/tmp/read bs=64k count=16 iflag=direct 2>/dev/null
cmp /tmp/two /tmp/read || fail "growing the namespace changed its data"
dd if=/tmp/two of=/dev/nvme0n2 bs=64k seek=496 oflag=direct 2>/dev/null || fail "the new part can't be written"

ask remove >/dev/null
wait_until 10 test ! -e /dev/nvme0n2
size_is nvme0n1 "$before" || fail "the first namespace has changed as well"
dd if=/dev/nvme0n1 of=/dev/null bs=64k count=16 iflag=direct 2>/dev/null || fail "the first namespace can't be read"
no_complaint 'rescanning|detected capacity change'
