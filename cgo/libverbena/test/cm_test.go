//go:build linux

package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// rdmacmTools are the programs of rdmacm-utils.
func rdmacmTools() (rows []row) {
	add := func(server, client, prints string, short bool) *row {
		program, _, _ := strings.Cut(client, " ")
		rows = append(rows, row{program: program, server: server, client: client, prints: prints, short: short, retries: true})
		return &rows[len(rows)-1]
	}
	add("rping -s -a HOST -p PORT -v -V -C 10", "rping -c -a HOST -p PORT -v -V -C 10", "rdma-ping-9", true)
	add("rping -s -P -a HOST -p PORT", "rping -c -a HOST -p PORT -C 3", "", true).stays = true
	add("rping -s -p PORT -C 20 -S 65000", "rping -c -a HOST -p PORT -C 20 -S 65000", "", false)
	for _, options := range []string{"", " -m", " -c 5 -C 50", " -a 20 -t 8"} {
		add("ucmatose -b HOST -p PORT"+options, "ucmatose -s HOST -p PORT"+options, "return status 0", options == "")
	}
	for _, options := range []string{"", " -c 5"} {
		add("udaddy -b HOST"+options, "udaddy -s HOST"+options, "return status 0", options == "").lossless = unrepeated // it has a port of its own
	}
	add("cmtime -p PORT", "cmtime -s HOST -p PORT -c 20", "destroy", true).stays = true
	add("rdma_server -p PORT", "rdma_client -s HOST -p PORT", "end 0", true)
	add("rdma_xserver -p PORT", "rdma_xclient -s HOST -p PORT", "end 0", false)
	return rows
}

// perftestCM are the programs of perftest with connection managers.
func perftestCM() (rows []row) {
	for _, options := range []string{
		"ib_send_lat -R", "ib_write_bw -R", "ib_read_lat -R", "ib_atomic_bw -R", "ib_send_lat -R -e",
		"ib_send_bw -R -c UD", "ib_send_bw -R -q 4", "ib_write_bw -R -b",
	} {
		program, _, _ := strings.Cut(options, " ")
		command := options + " -d DEV -p PORT -n 200"
		lossless := ""
		if strings.Contains(options, "-c UD") {
			lossless = unrepeated
		}
		rows = append(rows, row{program: program, server: command, client: command + " HOST", prints: "#bytes", retries: true, lossless: lossless,
			short: options == "ib_send_lat -R" || options == "ib_write_bw -R"})
	}
	return rows
}

// mckey sends messages of one process to the multicast group of another.
func TestCMMulticast(t *testing.T) {
	needProgram(t, "mckey", "rdmacm-utils")
	needProgram(t, "stdbuf", "coreutils")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	env := plain.environment(t, "VERBENA_DEVICES=soft-lo")
	options := []string{"-m", "239.7.1.2", "-b", "127.0.0.1", "-C", "5"}
	receiver, err := start(ctx, env, append([]string{"stdbuf", "-oL", "mckey"}, options...))
	require.NoError(t, err)
	defer receiver.stop()
	for !strings.Contains(receiver.output.String(), "receiving data transfers") && !receiver.ended() {
		time.Sleep(10 * time.Millisecond)
	}
	sender, err := start(ctx, env, append([]string{"mckey", "-s"}, options...))
	require.NoError(t, err)
	require.NoError(t, sender.Wait(), "%s", sender.output.String())
	require.NoError(t, receiver.Wait(), "%s", receiver.output.String())
	assert.Contains(t, receiver.output.String(), "return status 0")
}

// The functions of librdmacm do what their manual pages say. The checks are in testdata/cm.c.
func TestCMFunctions(t *testing.T) {
	for _, v := range []variant{plain, sanitized, raced} {
		t.Run(v.name, func(t *testing.T) {
			if testing.Short() && v.race {
				t.SkipNow()
			}
			program := v.compile(t, "cm")
			list, err := exec.Command(program).Output()
			require.NoError(t, err)
			for name := range strings.FieldsSeq(string(list)) {
				t.Run(name, func(t *testing.T) {
					out, err := run(t, v.environment(t, "VERBENA_DEVICES=soft-lo"), program, name)
					require.NoError(t, err, "%s", out)
					assert.Contains(t, out, "passed")
				})
			}
		})
	}
}

// loopbackHost returns the beginning of addresses that no other test uses.
func loopbackHost() string { return fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256)) }

// Devices that are named by their addresses work with connection managers.
func TestCMNamedByAddress(t *testing.T) {
	needProgram(t, "rping", "rdmacm-utils")
	host := loopbackHost()
	named := func(last string) end { return end{devices: "soft-" + host + last} }
	r := row{
		server: "rping -s -a HOST -p PORT -C 10", client: "rping -c -a HOST -p PORT -v -C 10",
		prints: "rdma-ping-9", retries: true,
	}
	_, err := r.run(t, &place{host: host + "1", server: named("1"), client: named("2")})
	assert.NoError(t, err)
}

// A server at 0.0.0.0 is reached at the address of an interface that came after it had begun to listen.
func TestCMListensLater(t *testing.T) {
	needProgram(t, "rping", "rdmacm-utils")
	needProgram(t, "stdbuf", "coreutils")
	a, b := netns.New(t), netns.New(t)
	env := plain.environment(t)
	server, err := start(t.Context(), env, append(a.Run(), strings.Fields("stdbuf -oL rping -s -d -P -p 7174")...))
	require.NoError(t, err)
	t.Cleanup(server.stop)
	for !strings.Contains(server.output.String(), "rdma_listen") {
		require.False(t, server.ended(), "%s", server.output)
		time.Sleep(10 * time.Millisecond)
	}
	b.IP(t, "link add v1 type veth peer name v0 netns %v", a)
	a.IP(t, "link set v0 up") // the address comes later, after the link-local one
	a.IP(t, "addr add 192.0.2.1/24 dev v0")
	b.IP(t, "addr add 192.0.2.2/24 dev v1")
	b.IP(t, "link set v1 up")
	for limit := time.Now().Add(patience); ; {
		out, err := run(t, env, append(b.Run(), strings.Fields("rping -c -a 192.0.2.1 -p 7174 -C 10")...)...)
		if err == nil {
			break
		}
		require.Less(t, time.Now(), limit, "%s\n%s", out, server.output)
	}
}

// Several processes at one interface are reached by the connection manager, from another host and from their
// own, also while one of them is stopped and after others were killed.
func TestProcessesAtOneInterface(t *testing.T) {
	needProgram(t, "rping", "rdmacm-utils")
	needProgram(t, "stdbuf", "coreutils")
	hosts, device := netns.Hosts(t, 2, 1500), "VERBENA_DEVICES=soft-"+netns.Link
	env := plain.environment(t, device)
	listen := func(port int) *child {
		server, err := start(t.Context(), env, append(hosts[0].Run(), strings.Fields(fmt.Sprint("stdbuf -oL rping -s -d -P -p ", port))...))
		require.NoError(t, err)
		t.Cleanup(server.stop)
		for !strings.Contains(server.output.String(), "rdma_listen") {
			require.False(t, server.ended(), "%s", server.output)
			time.Sleep(10 * time.Millisecond)
		}
		return server
	}
	reach := func(ports ...int) {
		t.Helper()
		for _, port := range ports {
			for i, from := range hosts {
				out, err := run(t, env, append(from.Run(), strings.Fields(fmt.Sprintf("rping -c -a %v -p %d -C 5", hosts[0].V4, port))...)...)
				require.NoError(t, err, "port %d, from host %d\n%s", port, i, out)
			}
		}
	}
	servers := []*child{listen(7201), listen(7202)}
	reach(7201, 7202)
	servers = append(servers, listen(7203), listen(7204))
	reach(7201, 7202, 7203, 7204)
	require.NoError(t, servers[0].Signal(syscall.SIGSTOP))
	reach(7203, 7202, 7204)
	listen(7205)
	reach(7205)
	require.NoError(t, servers[0].Signal(syscall.SIGCONT))
	reach(7201)
	for _, s := range servers[:2] {
		s.Kill()
	}
	listen(7202)
	reach(7202, 7203, 7204, 7205)
}

// rping exchanges data with Verbena's sample for it, in both directions.
func TestCMAgainstSample(t *testing.T) {
	needProgram(t, "rping", "rdmacm-utils")
	sample := filepath.Join(t.TempDir(), "cm_rping")
	out, err := exec.Command("go", "build", "-o", sample, "../../../samples/cm_rping").CombinedOutput()
	require.NoError(t, err, "%s", out)
	options := " -a 127.0.0.1 -p PORT -V -C 10"
	for _, r := range []row{
		{server: "rping -s" + options, client: sample + " -c" + options},
		{server: sample + " -s" + options, client: "rping -c" + options},
	} {
		r.retries = true
		_, err := r.run(t, onLoopback("", "soft-lo"))
		assert.NoError(t, err, r.client)
	}
}

// rstream says that there are no rsockets, also where the library takes librdmacm's place.
func TestRsockets(t *testing.T) {
	needProgram(t, "rstream", "rdmacm-utils")
	library := plain.library(t)
	for name, env := range map[string][]string{
		"preloaded":    plain.environment(t),
		"in the place": append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(library, "verbena-lib", "librdmacm")),
	} {
		t.Run(name, func(t *testing.T) {
			out, err := run(t, append(env, "VERBENA_DEVICES=soft-lo"), "rstream", "-s", "127.0.0.1")
			assert.Contains(t, out, "Protocol not supported") // as glibc says it
			var failed *exec.ExitError
			require.ErrorAs(t, err, &failed)
			assert.True(t, failed.Exited(), "%v", failed)
		})
	}
}
