package samples

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/pair"
)

// one runs a program that must fail with the given exit code. Its last line must contain all
// texts, standard output must be empty, and no new file may remain in the scratch folder.
func one(t *testing.T, scratch string, code int, program string, args []string, texts ...string) {
	t.Helper()
	stderr := oneError(t, scratch, code, program, args)
	for _, text := range texts {
		assert.Contains(t, stderr, text)
	}
}

// oneError is one without the texts, and returns what the program prints.
func oneError(t *testing.T, scratch string, code int, program string, args []string) (stderr string) {
	t.Helper()
	before := list(t, scratch)
	p := start(t, append([]string{program, "-l", "error"}, args...)...)
	assert.Equal(t, code, p.code())
	stderr = p.stderr.String()
	assert.True(t, strings.HasPrefix(stderr, program+": "), "%q", stderr)
	lines := strings.SplitAfter(stderr, "\n")
	for _, note := range lines[:max(0, len(lines)-2)] {
		assert.Regexp(t, "trying again|connecting to", note, "%q", stderr)
	}
	assert.Empty(t, p.stdout.String())
	assert.Equal(t, before, list(t, scratch))
	return stderr
}

func TestWrongUsage(t *testing.T) {
	programs := []string{"device_info", "demo"}
	for _, p := range pair.Samples() {
		programs = append(programs, p.Requester, p.Responder)
	}
	for _, program := range programs {
		one(t, t.TempDir(), 2, program, []string{"-no-such-flag"}, "-no-such-flag", "-h lists the flags")
		one(t, t.TempDir(), 2, program, []string{"left", "over"}, `"left"`)
		one(t, t.TempDir(), 2, program, []string{"-timeout", "soon"}, "-timeout", "want a time")
		one(t, t.TempDir(), 2, program, []string{"-timeout", "-3s"}, "-timeout", "want a time")
		one(t, t.TempDir(), 2, program, []string{"-d"}, "-d")
		one(t, t.TempDir(), 1, program, []string{"-d", "mlx5_99"}, "mlx5_99", "no such device", "soft-lo")
	}
	tests := []struct {
		program string
		args    string
		texts   []string
	}{
		{"rdma_send", "-oob pigeon", []string{`"pigeon"`, "tcp:HOST:PORT"}},
		{"rdma_send", "-oob dir:", []string{`"dir:"`}},
		{"rdma_send", "-oob tcp:localhost", []string{"missing port"}},
		{"rdma_send", "-oob tcp:localhost:none", []string{"none"}},
		{"rdma_send", "-oob tcp::7471", []string{"give the host that"}},
		{"rdma_send", "-ld a", []string{"-ld and -re"}},
		{"rdma_send", "-re a", []string{"-ld and -re"}},
		{"rdma_send", "-ld a -re a", []string{"same file"}},
		{"rdma_send", "-ld a -re b -oob dir", []string{"-oob excludes"}},
		{"rdma_send", "-ld a -re b -m c", []string{"-m"}},
		{"rdma_read_requester", "-ld a -re b", []string{"need -m"}},
		{"rdma_read_responder", "-ld a -re b -m b", []string{"same file"}},
		{"rdma_send", "-interactive", []string{"-ld and -re"}},
		{"rdma_send", "-tt DC", []string{`"DC"`, "RC"}},
		{"ud_send", "-tt RC", []string{`"RC"`, "UD"}},
		{"ud_send", "-cm", []string{"-cm"}},
		{"rdma_send", "-g -1", []string{"from 0"}},
		{"rdma_send", "-connect-timeout 0s", []string{"want a time above zero"}},
		{"rdma_send", "-send-string=", []string{"empty"}},
		{"rdma_send", "-w text", []string{"-w"}},
		{"rdma_write_requester", "-size 5 -w text", []string{"-size"}},
		{"rdma_send", "-l loud", []string{"debug"}},
		{"rdma_multi_conn_send", "-nc 0", []string{"1 to 8"}},
		{"rdma_multi_conn_receive", "-num-connections 9", []string{"1 to 8"}},
		{"rdma_send_immediate", "-i 4294967296", []string{"32 bits"}},
		{"rdma_atomic_fetch_add_requester", "-add -5", []string{"-5"}},
	}
	for _, test := range tests {
		one(t, t.TempDir(), 2, test.program, strings.Fields(test.args), append(test.texts, "-h lists the flags")...)
	}
}

func TestHelp(t *testing.T) {
	p := start(t, "rdma_read_responder", "-h")
	assert.Zero(t, p.code())
	assert.Empty(t, p.stderr.String())
	for _, text := range []string{"-d, -device", "-ld, -local-descriptor-path", "-re, -remote-descriptor-path",
		"-m, -remote-resource-descriptor-path", "-g, -gid-index", "-tt, -transport-type", "-r, -read-string", "-oob"} {
		assert.Contains(t, p.stdout.String(), text)
	}
}

func TestFailures(t *testing.T) {
	busyUDP, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = busyUDP.Close() }()
	busyTCP, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = busyTCP.Close() }()
	missing := filepath.Join(t.TempDir(), "missing", "folder")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	tests := map[string]struct {
		program string
		args    []string
		texts   []string
	}{
		"device's address in use": {"rdma_send", []string{"-d", "soft-" + busyUDP.LocalAddr().String()},
			[]string{busyUDP.LocalAddr().String(), "in use"}},
		"unknown option of the device": {"rdma_send", []string{"-d", "soft-lo?speed=11"}, []string{"speed"}},
		"no such GID":                  {"rdma_send", []string{"-g", "99"}, []string{"99"}},
		"TCP address in use": {"rdma_receive", []string{"-oob", "tcp:" + busyTCP.Addr().String()},
			[]string{busyTCP.Addr().String(), "in use"}},
		"no such host":         {"rdma_send", []string{"-oob", "tcp:no-such-host.invalid:7471"}, []string{"no-such-host.invalid"}},
		"no such folder":       {"rdma_send", []string{"-oob", "dir:" + missing}, []string{missing}},
		"folder is a file":     {"rdma_send", []string{"-oob", "dir:" + file}, []string{file}},
		"file in no folder":    {"rdma_send", []string{"-ld", missing, "-re", file}, []string{missing}},
		"descriptor is empty":  {"rdma_send", []string{"-ld", file + "1", "-re", file}, []string{file, "empty"}},
		"descriptor is folder": {"rdma_send", []string{"-ld", file + "1", "-re", filepath.Dir(file)}, []string{"folder"}},
		"nobody comes, dir":    {"rdma_send", []string{"-oob", "dir:" + filepath.Dir(file), "-timeout", "100ms"}, []string{"100ms", "rdma_receive", filepath.Dir(file)}},
		"nobody comes, tcp":    {"rdma_receive", []string{"-oob", "tcp:127.0.0.1:0", "-timeout", "100ms"}, []string{"100ms", "tcp:127.0.0.1:0"}},
		"nobody listens, tcp":  {"rdma_send", []string{"-oob", "tcp:127.0.0.1:1", "-timeout", "100ms"}, []string{"100ms", "tcp:127.0.0.1:1"}},
		"file never comes": {"rdma_read_requester", []string{"-ld", file + "1", "-re", file + "2", "-m", file + "3", "-timeout", "100ms"},
			[]string{"100ms", file + "2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			one(t, filepath.Dir(file), 1, test.program, test.args, test.texts...)
		})
	}
}

// Descriptors that are damaged, or not the ones that are needed.
func TestBadDescriptors(t *testing.T) {
	connection, err := descriptor.Encode(descriptor.Connection, []byte("no such thing"))
	require.NoError(t, err)
	memory, err := descriptor.Encode(descriptor.MemoryMap, []byte("no such thing"))
	require.NoError(t, err)
	damaged := []byte(descriptor.Armor(connection))
	damaged[40] ^= 3
	tests := map[string]struct {
		content []byte
		text    string
	}{
		"text":      {[]byte("hello\n"), "not a descriptor"},
		"damaged":   {damaged, "descriptor"},
		"cut short": {connection[:20], "cut short"},
		"followed":  {append(append([]byte{}, connection...), 0), "followed by something else"},
		"of memory": {memory, "wrong kind"},
		"payload":   {connection, "descriptor"},
		"two":       {[]byte(descriptor.Armor(connection) + descriptor.Armor(connection)), "same number"},
		"too big":   {make([]byte, descriptor.MaxFile+1), "too big"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scratch := t.TempDir()
			theirs := filepath.Join(scratch, "theirs")
			require.NoError(t, os.WriteFile(theirs, test.content, 0o600))
			one(t, scratch, 1, "rdma_send", []string{"-ld", filepath.Join(scratch, "ours"), "-re", theirs, "-timeout", patience}, test.text)
		})
	}
}

// Programs that do not belong together report it.
func TestMismatch(t *testing.T) {
	failAtBothEnds(t, byName(t, "rdma_multi_conn_send"), pair.Options{RequesterArgs: []string{"-nc", "3"}, ResponderArgs: []string{"-nc", "4"}},
		"offers 4 connections, but this program offers 3", "offers 3 connections, but this program offers 4")

	p := pair.Pair{Requester: "rdma_send", Responder: "rdma_write_responder", Memory: true}
	mismatch(t, p, pair.Options{Way: pair.TCP, Address: "127.0.0.1:" + freePort(t)}, "but this program waits for rdma_receive")
}

// mismatch runs two programs that do not belong together: the requester reports it, and the
// responder keeps waiting for another peer.
func mismatch(t *testing.T, p pair.Pair, o pair.Options, text string) {
	t.Helper()
	o.Bin, o.Scratch = bin, t.TempDir()
	o.RequesterArgs, o.ResponderArgs = []string{"-timeout", patience}, []string{"-timeout", patience}
	requesterCommand, responderCommand, err := o.Commands(p)
	require.NoError(t, err)
	responder, requester := start(t, responderCommand...), start(t, requesterCommand...)
	assert.Equal(t, 1, requester.code(), "%s", requester.stderr.String())
	assert.Contains(t, requester.stderr.String(), text)
	responder.signal(os.Interrupt)
	assert.NotZero(t, responder.code())
	assert.Empty(t, list(t, o.Scratch))
}

// A program does not wait forever for a peer that ended between the exchange of descriptors
// and the connection.
func TestPeerGoneBeforeConnecting(t *testing.T) {
	for _, p := range pair.Samples() {
		for _, side := range [][2]string{{p.Requester, p.Responder}, {p.Responder, p.Requester}} {
			program, gone, awaited := side[0], side[1], "the connection to "
			if p.Datagrams {
				awaited = "a message from "
			}
			t.Run(program, func(t *testing.T) {
				t.Parallel()
				scratch := t.TempDir()
				in := func(name string) string { return filepath.Join(scratch, name) }
				var memory []string
				files := []string{"theirs"}
				if p.Memory {
					memory = []string{"-m", in("memory")}
					if gone == p.Responder {
						files = append(files, "memory")
					}
				}
				peer := start(t, append([]string{gone, "-ld", in("theirs"), "-re", in("ours"), "-timeout", patience}, memory...)...)
				require.Eventually(t, func() bool {
					have := list(t, scratch)
					return !slices.ContainsFunc(files, func(f string) bool { return !slices.Contains(have, f) })
				}, 5*time.Minute, time.Millisecond)
				peer.signal(os.Kill)
				peer.code()
				stderr := oneError(t, scratch, 1, program,
					append([]string{"-ld", in("ours"), "-re", in("theirs"), "-connect-timeout", "50ms", "-timeout", patience}, memory...))
				// Another program may have taken the peer's address, and have ended meanwhile.
				if !strings.Contains(stderr, "the process of the peer is dead") {
					assert.Contains(t, stderr, "gave up after 50ms (-connect-timeout) while waiting for "+awaited+gone)
				}
			})
		}
	}
}

// Data that is too long for the peer's memory or receive fails at both ends.
func TestTooBig(t *testing.T) {
	text := strings.Repeat("x", 5000)
	for _, test := range []struct {
		requester                    string
		toRequester, toResponder     []string
		requesterSays, responderSays string
	}{
		{"rdma_send", []string{"-s", text}, nil, "remote invalid request", "local length error"},
		{"rdma_write_requester", []string{"-w", text}, nil, "cannot write 5000 bytes", "the peer has failed"},
		{"rdma_read_requester", nil, []string{"-r", text}, "memory has 5000 bytes", "the peer has failed"},
	} {
		failAtBothEnds(t, byName(t, test.requester), pair.Options{RequesterArgs: test.toRequester, ResponderArgs: test.toResponder},
			test.requesterSays, test.responderSays)
	}
}

// failAtBothEnds runs a pair both of which fail, and leave no file.
func failAtBothEnds(t *testing.T, p pair.Pair, o pair.Options, requesterSays, responderSays string) {
	t.Helper()
	o.Bin, o.Scratch, o.Way = bin, t.TempDir(), pair.Dir
	o.RequesterArgs, o.ResponderArgs = append(o.RequesterArgs, "-timeout", patience), append(o.ResponderArgs, "-timeout", patience)
	result, err := pair.Run(t.Context(), p, o)
	require.NoError(t, err)
	assert.Equal(t, 1, result.Requester.Code, "%s", report(result))
	assert.Equal(t, 1, result.Responder.Code, "%s", report(result))
	assert.Contains(t, result.Requester.Stderr, requesterSays)
	assert.Contains(t, result.Responder.Stderr, responderSays)
	assert.Empty(t, list(t, o.Scratch))
}
