package pingpong

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func parsed(t *testing.T, service verbs.QPType, args ...string) *Options {
	t.Helper()
	o, err := parse(Program{Name: "test", Service: service, Size: 4096}, args, new(bytes.Buffer), new(bytes.Buffer))
	require.NoError(t, err)
	return o
}

func TestFlags(t *testing.T) {
	o := parsed(t, verbs.RC)
	assert.False(t, o.Client())
	o.program, o.out, o.err = Program{}, nil, nil
	assert.Equal(t, &Options{TCPPort: 18515, Port: 1, Size: 4096, MTU: 1024, RxDepth: 500, Iters: 1000, GIDIndex: -1}, o)

	o = parsed(t, verbs.UC, "-g", "2", "host", "-p=99", "--ib-dev", "soft-x", "--ib-port=3", "-s", "0x10", "-m", "512", "-r", "7", "--iters", "9", "--sl", "5", "-e", "--chk")
	assert.True(t, o.Client())
	o.program, o.out, o.err = Program{}, nil, nil
	assert.Equal(t, &Options{
		Host: "host", TCPPort: 99, Device: "soft-x", Port: 3, Size: 16, MTU: 512, RxDepth: 7, Iters: 9, SL: 5,
		Events: true, GIDIndex: 2, Check: true,
	}, o)
}

func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	never := func(context.Context, *Options) error { return errors.New("run") }
	assert.Zero(t, execute(Program{Name: "prog", Service: verbs.UD, Size: 2048}, never, []string{"-h"}, &out, &errs))
	assert.Contains(t, out.String(), "ibv_ud_pingpong")
	assert.Contains(t, out.String(), "-s, -size bytes\n        the size of the messages (default 2048)")
	assert.NotContains(t, out.String(), "-mtu")
	assert.Empty(t, errs.String())
}

// The text is that of the C programs, to the byte.
func TestAddress(t *testing.T) {
	a := Address{LID: 0x1f, QPN: 0x12, PSN: 0xabcdef, GID: verbs.GIDFromAddr(netip.MustParseAddr("10.0.0.1"))}
	const text = "001f:000012:abcdef:00000000000000000000ffff0a000001\x00"
	assert.Len(t, text, messageLen)
	assert.Equal(t, text, string(a.encode()))
	got, err := decode([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, a, got)
	for _, bad := range []string{
		"", "\x00", text[:messageLen-1], "1" + text, text[5:], "-01f" + text[4:], "001f:1000012:abcdef:" + text[19:],
		text[:18] + "::" + text[20:], text[:messageLen-3] + "zz\x00",
	} {
		_, err := decode([]byte(bad))
		assert.ErrorContains(t, err, "want LID:QPN:PSN:GID", "%q", bad)
	}
}

// FuzzDecodeParameters: what a peer says behind the handshake.
func FuzzDecodeParameters(f *testing.F) {
	f.Add("verbena:RC:1000\x00")
	f.Add("verbena:UD:-1")
	f.Fuzz(func(t *testing.T, text string) {
		if g, ok := decodeParameters(text); ok {
			require.GreaterOrEqual(t, g.iters, 0)
			again, ok := decodeParameters(string(g.encode()))
			require.True(t, ok)
			require.Equal(t, g, again)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("0000:000012:abcdef:00000000000000000000ffff0a000001\x00"))
	f.Add([]byte("0:1:2:fe80000000000000020000fffe000001\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decode(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, a.QPN, uint32(0xffffff))
		again, err := decode(a.encode())
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}

func TestChooseGID(t *testing.T) {
	entry := func(index int, addr string, kind verbs.GIDType, port uint16) verbs.GIDEntry {
		return verbs.GIDEntry{Index: index, GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)), Type: kind, UDPPort: port}
	}
	table := []verbs.GIDEntry{
		entry(0, "fe80::1", verbs.GIDRoCEv1, 0),
		entry(1, "fe80::1", verbs.GIDRoCEv2, 0),
		entry(2, "10.0.0.1", verbs.GIDRoCEv1, 0),
		entry(3, "10.0.0.9", verbs.GIDRoCEv2, 5000),
		entry(4, "fd00::1", verbs.GIDRoCEv2, 4791),
		entry(6, "10.0.0.1", verbs.GIDRoCEv2, 4791),
	}
	for _, c := range []struct {
		index int
		peer  string
		want  int
		err   string
	}{
		{-1, "", 6, ""},
		{-1, "10.0.0.2", 6, ""},
		{-1, "fd00::2", 4, ""},
		{-1, "fe80::2", 1, ""},
		{0, "", 0, ""},
		{6, "fd00::2", 6, ""},
		{3, "", 0, "GID index 3, 10.0.0.9, uses UDP port 5000"},
		{5, "", 0, "the GID table of port 1 has no entry with index 5; device_info lists its entries"},
	} {
		o := &Options{Port: 1, GIDIndex: c.index}
		var peer netip.Addr
		if c.peer != "" {
			peer = netip.MustParseAddr(c.peer)
		}
		got, err := o.chooseGID(table, peer)
		if c.err != "" {
			assert.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, c.want, got.Index, "index %d, peer %q", c.index, c.peer)
	}
	o := &Options{Port: 1, GIDIndex: -1}
	_, err := o.chooseGID(table[:4], netip.MustParseAddr("10.0.0.2"))
	assert.ErrorContains(t, err, "no entry for RoCEv2 on UDP port 4791 that reaches 10.0.0.2")
}

func TestValidate(t *testing.T) {
	client := parsed(t, verbs.RC, "-c", "-s", "10000", "host")
	server := parsed(t, verbs.RC, "-c", "-s", "10000")
	message, free := client.Memory(40)
	defer free()
	assert.Len(t, message, 10040)
	require.NoError(t, server.Validate(message[40:]))
	unmarked, free := server.Memory(0)
	defer free()
	assert.ErrorContains(t, server.Validate(unmarked), "invalid data in page 0: byte 0")
	message[40+9999]++
	assert.ErrorContains(t, server.Validate(message[40:]), "byte 9999")
	assert.NoError(t, client.Validate(message[40:]), "only a server checks")
}

func TestReport(t *testing.T) {
	var out bytes.Buffer
	o := &Options{Size: 1000, Iters: 100, out: &out}
	o.report(20 * time.Millisecond)
	assert.Equal(t, "200000 bytes in 0.02 seconds = 80.00 Mbit/sec\n100 iters in 0.02 seconds = 200.00 usec/iter\n", out.String())
}

// A program that closes the connection after the handshake, as the C programs do, has not died.
// A program that sends something else does not count as keeping the connection open.
func TestForeignPeer(t *testing.T) {
	for _, said := range []string{"", "nonsense\x00", "verbena:UC:x\x00", strings.Repeat("x", 5000)} {
		ours, theirs := net.Pipe()
		p := &Peer{o: parsed(t, verbs.UC), conn: ours, stop: func() bool { return true }}
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go func() {
			_, _ = io.WriteString(theirs, said) // ends when p is closed, if it is too long
			_ = theirs.Close()
		}()
		ctx, err := p.watchConnection(t.Context())
		require.NoError(t, err)
		<-p.announced
		assert.False(t, p.keepsOpen)
		require.NoError(t, p.mismatch)
		require.NoError(t, ctx.Err())
		require.NoError(t, p.Close())
	}
}
