# For scripts that measure between two processes of this machine: source this file, and build
# "$folder/verbena". At the end the folder is deleted, and a server that still runs is stopped.
folder=$(mktemp -d)
server=
leave() {
	[ -z "$server" ] || kill "$server" 2>/dev/null || true
	rm -rf "$folder"
}
trap leave EXIT

# pair DEVICE SERVER_FLAGS -- FLAGS runs both ends of verbena perf. It prints the client's
# output.
pair() {
	local device=$1 port='' server_flags=()
	shift
	while [ "$1" != -- ]; do
		server_flags+=("$1")
		shift
	done
	shift
	: >"$folder/listening"
	"$folder/verbena" perf -d "$device" -bind 127.0.0.1 -p 0 -once "${server_flags[@]}" >"$folder/listening" 2>&1 &
	server=$!
	for _ in {1..600}; do
		port=$(sed -n 's/^listening 127\.0\.0\.1:\([0-9]*\):.*/\1/p' "$folder/listening")
		[ -z "$port" ] || break
		sleep 0.1
	done
	"$folder/verbena" perf -d "$device" -wait 5m "$@" "127.0.0.1:$port"
	wait "$server"
	server=
}
