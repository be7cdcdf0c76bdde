//go:build linux

package test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// foreign are programs that were not built for this machine.
type foreign struct {
	root    string // the folder that scripts/programs-setup.sh makes
	run     func(root, library string) []string
	library variant
}

// Programs for arm64 run with the library for arm64. The emulation orders memory as the machine
// below it does, so this shows nothing about that.
func TestArm64(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it builds the library for another architecture")
	}
	if runtime.GOARCH == "arm64" {
		t.Skip("skipped: on arm64, the other tests show this")
	}
	needProgram(t, "qemu-aarch64", "qemu-user")
	needProgram(t, "aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")
	foreign{"bookworm-arm64", func(root, library string) []string {
		return []string{"qemu-aarch64", "-L", root, "-E", "LD_PRELOAD=" + filepath.Join(library, "libverbena.so")}
	}, arm64}.test(t)
}

// Programs of a newer Debian, with its C library and its rdma-core, run with the library that was built
// here.
func TestNewerDebian(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("skipped: the programs are for amd64")
	}
	foreign{"trixie-amd64", func(root, library string) []string {
		return []string{
			filepath.Join(root, "usr/lib64/ld-linux-x86-64.so.2"), "--preload", filepath.Join(library, "libverbena.so"), "--library-path",
			filepath.Join(library, "verbena-lib/libibverbs") + ":" + filepath.Join(library, "verbena-lib/librdmacm") + ":" + filepath.Join(root, "usr/lib/x86_64-linux-gnu"),
		}
	}, plain}.test(t)
}

func (f foreign) test(t *testing.T) {
	root, err := filepath.Abs("../../../.build/" + f.root)
	require.NoError(t, err)
	_, err = os.Stat(root)
	netns.Need(t, err, "the test needs programs of "+f.root+" (scripts/programs-setup.sh downloads them)")
	library := f.library.library(t)
	// Since qemu-user does not have all options of IPv6 sockets, the device has one address of IPv4.
	command := func(device string) []string {
		return append([]string{"env", "-u", "LD_PRELOAD", "VERBENA_LOG=debug", "VERBENA_DEVICES=" + device}, f.run(root, library)...)
	}

	host := loopbackHost()
	for _, p := range []struct{ name, options string }{{"shared memory", ""}, {"UDP", "?local=off"}} {
		at := &place{
			name: p.name, host: host + "1",
			server: end{prefix: command("soft-" + host + "1" + p.options)},
			client: end{prefix: command("soft-" + host + "2" + p.options)},
		}
		for _, r := range []row{
			{client: "ibv_devices", prints: "soft_" + host + "2"},
			{client: "ibv_devinfo -v", prints: "RoCE v2"},
			{server: "ibv_rc_pingpong -g 0 -p PORT -n 100 -c -e", prints: "100 iters"},
			{server: "ibv_ud_pingpong -g 0 -p PORT -n 100", prints: "100 iters"},
			{server: "ib_write_bw -p PORT -n 100", prints: "#bytes"},
			{server: "ib_write_lat -p PORT -n 100", prints: "#bytes"}, // polls memory
			{server: "ib_send_lat -e -p PORT -n 100", prints: "#bytes"},
			{server: "ib_atomic_lat -p PORT -n 100", prints: "#bytes"},
			{server: "ib_read_bw -R -p PORT -n 100", prints: "#bytes", retries: true},
			{server: "rping -s -a HOST -p PORT -v -V -C 10", client: "rping -c -a HOST -p PORT -v -V -C 10", prints: "rdma-ping-9", retries: true},
		} {
			if r.client == "" {
				r.client = r.server + " HOST"
			}
			program, _, _ := strings.Cut(r.client, " ")
			t.Run(p.name+"/"+program, func(t *testing.T) {
				installed := filepath.Join(root, "usr/bin") + "/"
				if r.client = installed + r.client; r.server != "" {
					r.server = installed + r.server
				}
				output, err := r.run(t, at)
				require.NoError(t, err)
				if r.server != "" && program != "ibv_ud_pingpong" { // datagrams go by UDP
					assert.Equal(t, p.options == "", strings.Contains(output, "packets use shared memory"), "%s", output)
				}
			})
		}
	}
}
