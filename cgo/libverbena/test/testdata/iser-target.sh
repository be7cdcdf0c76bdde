#!/bin/sh
# iser-target.sh HOST PORT runs tgtd as a target of iSER at port 3260, with a disk, until it is told
# to end. At PORT it listens for iSCSI over TCP, which nobody uses.
folder=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
export TGT_IPC_SOCKET="$folder/socket"
tgtd -f --iser pool_sz_mb=64 --iscsi portal="$1:$2" &
target=$!
trap 'kill -KILL $target; rm -rf "$folder"; exit' TERM INT
unset LD_PRELOAD # tgtadm needs no devices
admin() {
	tgtadm --lld iser --mode "$@"
}
until admin target --op new --tid 1 --targetname iqn.2026-11.org.example:disk 2>"$folder/error"; do
	kill -0 $target || exit 1
	sleep 0.1
done
truncate -s 64M "$folder/disk"
admin logicalunit --op new --tid 1 --lun 1 -b "$folder/disk"
admin target --op bind --tid 1 -Q iqn.2026-11.org.example:client
admin target --op bind --tid 1 -I ALL
wait $target
