package control

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/perf/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func examples() []Message {
	p := plan.Plan{Test: plan.Test{Op: plan.Send, Kind: plan.Latency}}
	p.Complete()
	return []Message{
		&Request{Plan: p, Token: make([]byte, TokenLen)},
		&Accept{Host: Host{Device: "soft-lo", GIDIndex: 3}},
		&End{Engine: 1, Memory: []byte{1, 2}, Connections: [][]byte{{3}, {4}}, Last: true},
		&Connected{}, &Begin{Step: 7}, &Ready{}, &Stop{},
		&Outcome{Busy: 0.5, Counters: []Counter{{"duplicate_request", -1}}},
		&Bye{}, &Fault{Reason: "no"},
	}
}

func TestRoundTrip(t *testing.T) {
	var stream []byte
	var err error
	seen := map[Kind]bool{}
	for _, m := range examples() {
		stream, err = Append(stream, m)
		require.NoError(t, err)
		seen[m.kind()] = true
	}
	require.Len(t, seen, len(kinds)-1, "there is an example of each kind")
	r := bytes.NewReader(stream)
	for _, m := range examples() {
		got, err := Read(r)
		require.NoError(t, err)
		assert.Equal(t, m, got)
	}
	_, err = Read(r)
	assert.Equal(t, io.EOF, err)
}

// frame makes a frame with any header.
func frame(magic string, version, kind uint16, length uint32, payload string) []byte {
	b := binary.BigEndian.AppendUint16([]byte(magic), version)
	b = binary.BigEndian.AppendUint16(b, kind)
	return append(binary.BigEndian.AppendUint32(b, length), payload...)
}

func TestWrongFrames(t *testing.T) {
	begin := uint16(kindBegin)
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"another protocol": {[]byte("GET / HTTP/1.1\r\n"), "GET "},
		"another version":  {frame("VBPF", 3, begin, 0, ""), "version 3"},
		"no such kind":     {frame("VBPF", Version, 99, 2, "{}"), "kind 99"},
		"kind 0":           {frame("VBPF", Version, 0, 2, "{}"), "kind 0"},
		"too long":         {frame("VBPF", Version, begin, MaxPayload+1, ""), "longer than the limit"},
		"no object":        {frame("VBPF", Version, begin, 0, ""), "begin"},
		"unknown field":    {frame("VBPF", Version, begin, 9, `{"a":"b"}`), "unknown field"},
		"wrong type":       {frame("VBPF", Version, begin, 12, `{"step":"x"}`), "begin"},
		"extra data after": {frame("VBPF", Version, begin, 4, `{}{}`), "extra data after"},
	} {
		_, err := Read(bytes.NewReader(c.frame))
		assert.ErrorIs(t, err, ErrProtocol, name)
		assert.ErrorContains(t, err, c.want, name)
	}
	whole, err := Append(nil, &Begin{Step: 1})
	require.NoError(t, err)
	for n := 1; n < len(whole); n++ {
		_, err := Read(bytes.NewReader(whole[:n]))
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF, n)
	}
	_, err = Append(nil, &Fault{Reason: strings.Repeat("x", MaxPayload)})
	assert.Error(t, err)
}

func FuzzRead(f *testing.F) {
	for _, m := range examples() {
		b, err := Append(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		if r, ok := m.(*Request); ok { // what a server does with it
			if r.Plan.Validate(plan.Limits{Memory: 1 << 30, Connections: 1 << 16, Engines: 64}) == nil {
				for e := range r.Plan.Engines {
					require.Positive(t, r.Plan.Layout(e).Size())
				}
			}
		}
		once, err := Append(nil, m)
		require.NoError(t, err)
		again, err := Read(bytes.NewReader(once))
		require.NoError(t, err)
		twice, err := Append(nil, again)
		require.NoError(t, err)
		require.Equal(t, once, twice)
	})
}

// converse is a conversation, and the other end of its stream.
func converse(t *testing.T) (*Conversation, net.Conn) {
	a, b := net.Pipe()
	c := NewConversation(t.Context(), a)
	t.Cleanup(func() {
		_ = b.Close()
		require.NoError(t, c.Close())
	})
	return c, b
}

func put(t *testing.T, w io.Writer, m Message) {
	b, err := Append(nil, m)
	require.NoError(t, err)
	_, err = w.Write(b)
	require.NoError(t, err)
}

func TestConversation(t *testing.T) {
	c, peer := converse(t)
	go func() { _ = c.Send(&Begin{Step: 2}) }()
	m, err := Read(peer)
	require.NoError(t, err)
	assert.Equal(t, &Begin{Step: 2}, m)

	go put(t, peer, &Ready{})
	_, err = Await[*Ready](t.Context(), c)
	require.NoError(t, err)

	go put(t, peer, &Stop{})
	_, err = Await[*Ready](t.Context(), c)
	assert.ErrorIs(t, err, ErrProtocol)
	assert.ErrorContains(t, err, "received stop, want ready")

	require.NoError(t, peer.Close())
	_, err = Await[*Ready](t.Context(), c)
	assert.ErrorIs(t, err, ErrPeerClosed)
	<-c.Context().Done()
	assert.ErrorIs(t, c.Send(&Ready{}), ErrPeerClosed)
}

func TestFault(t *testing.T) {
	c, peer := converse(t)
	go put(t, peer, &Fault{Reason: "no\x1b[2J\n" + strings.Repeat("é", maxReason)})
	_, err := Await[*Ready](t.Context(), c)
	var fault *Fault
	require.True(t, errors.As(err, &fault))
	assert.NotContains(t, fault.Reason, "\x1b")
	assert.NotContains(t, fault.Reason, "\n")
	assert.Less(t, len(fault.Reason), 2*maxReason)
}

func TestSanitize(t *testing.T) {
	o := Outcome{Busy: -1, Rate: -2, Operations: -3, Damage: "a\x07", Counters: []Counter{{"b\x07", 1}}}
	o.Sanitize()
	assert.Equal(t, Outcome{Damage: `a\a`, Counters: []Counter{{`b\a`, 1}}}, o)
	h := Host{Device: "a\nb"}
	h.Machine.CPU = "\x1b[1m"
	h.Sanitize()
	assert.Equal(t, `a\nb`, h.Device)
	assert.NotContains(t, h.Machine.CPU, "\x1b")
}
