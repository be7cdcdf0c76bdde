# valkey-server.sh VALKEY FOLDER HOST PORT serves RDMA at an address, from an empty folder below FOLDER.
# Peers on another host are refused in the protected mode.
set -e
cd "$(mktemp -d -p "$2")"
exec "$1/src/valkey-server" --port 0 --protected-mode no --appendonly no --loadmodule "$1/src/valkey-rdma.so" --rdma-bind "$3" --rdma-port "$4"
