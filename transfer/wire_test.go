package transfer

import (
	"bytes"
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
)

func seeds() [][]byte {
	segments := []*description{
		{name: "a", size: 1, perm: mmap.RemoteRead, keys: []key{{1, 2}, {3, 4}}},
		{name: "b", size: 1 << 40, perm: remotePermissions, keys: []key{{1 << 20, 5}, {1 << 30, 6}}},
	}
	return [][]byte{
		replyTo(query{}, segments, nil),
		replyTo(query{only: true, name: "b"}, segments, nil),
		query{name: "a"}.encode(nil),
		query{only: true, name: strings.Repeat("x", maxName)}.encode(nil),
		request{epoch: 1, peer: 2, device: 3}.encode(),
		acceptance{epoch: 1, device: 1, addrs: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7600"), netip.MustParseAddrPort("[2001:db8::1]:7600")}}.encode(),
	}
}

// Whatever arrives, decoders neither panic nor accept what their encoders do not write.
func FuzzDecode(f *testing.F) {
	for _, b := range seeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeQuery(b); err == nil {
			require.Equal(t, b, q.encode(nil))
		}
		if r, err := decodeRequest(b); err == nil {
			require.Equal(t, r.encode(), bytes.TrimRight(b[:requestLen], "")[:requestLen])
		}
		if a, err := decodeAcceptance(b); err == nil {
			require.True(t, bytes.HasPrefix(b, a.encode()) || bytes.HasPrefix(a.encode(), b))
		}
		r, err := decodeReply(b, 2)
		if err != nil {
			return
		}
		var segments []*description
		for i := range r.segments {
			segments = append(segments, &r.segments[i])
		}
		again := replyTo(query{}, segments, nil)
		if len(again) == len(b) { // not cut to the length of a message
			again[1] = b[1]
			require.Equal(t, b, again)
		}
	})
}

// Each prefix of a message, and each with a byte more, is refused.
func TestStrict(t *testing.T) {
	for i, b := range seeds() {
		decode := func(b []byte) (err error) {
			switch {
			case i < 2:
				_, err = decodeReply(b, 2)
			case i < 4:
				_, err = decodeQuery(b)
			case i < 5:
				_, err = decodeRequest(b)
			default:
				_, err = decodeAcceptance(b)
			}
			return err
		}
		require.NoError(t, decode(b))
		for n := range b {
			require.ErrorIs(t, decode(b[:n]), ErrProtocol, "%d bytes of %x", n, b)
		}
		require.ErrorIs(t, decode(append(bytes.Clone(b), 1)), ErrProtocol)
	}
}

// stranger is a program that is no agent.
type stranger struct {
	*rdma.Connections
	engine *pe.Engine
	sends  *rdma.Pool
	memory *mmap.Map
	ended  chan error
}

// strange starts one; begin runs when its context is Running.
func strange(t *testing.T, begin func(s *stranger)) *stranger {
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	s := &stranger{engine: pe.New(pe.Config{}), ended: make(chan error, 8)}
	s.Connections, err = rdma.New(dev, rdma.Config{Engine: s.engine, MaxConnections: 4})
	require.NoError(t, err)
	s.memory, err = mmap.Alloc(dev, 4096, mmap.LocalReadWrite)
	require.NoError(t, err)
	s.sends, err = s.Pool(4, pe.FreeTask, func(t *rdma.Task, _ error) { _ = t.Free() })
	require.NoError(t, err)
	require.NoError(t, s.Receive(4, maxMessage, func(*rdma.Message) {}))
	s.OnConnection(func(conn *rdma.Connection, state rdma.ConnectionState, err error) {
		switch state {
		case rdma.Ready:
			if n, _ := conn.UserData().(int); n > 0 {
				task, err := s.sends.Send(conn, bufinv.Source(s.memory, 0, n))
				_ = pe.SubmitOrFree(task, err)
			}
		case rdma.Failed:
			_ = conn.Close()
		case rdma.Closed:
			s.ended <- conn.Err()
		}
	})
	s.OnStateChange(func(_, next pe.State) {
		if next == pe.Running {
			begin(s)
		}
	})
	require.NoError(t, s.Start())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = s.engine.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		require.NoError(t, s.engine.Close())
		require.NoError(t, s.Close())
		require.NoError(t, s.memory.Close())
		require.NoError(t, dev.Close())
	})
	return s
}

// Who breaks the protocol is refused, and counted; others are served.
func TestHostile(t *testing.T) {
	far := open(t, 1)
	register(t, far, "blocks", 100)
	addr := far.Addrs()[0].String()
	for name, dials := range map[string]struct {
		private []byte
		message []byte
	}{
		"no protocol":                  {private: []byte("hello")},
		"a request of another version": {private: []byte{0x56, 0x54, 0x47, 2}},
		"a bad query":                  {request{epoch: 1, peer: 7}.encode(), []byte{9, 9, 9}},
		"an empty query":               {request{epoch: 1, peer: 8}.encode(), []byte{0}},
		"a reply":                      {request{epoch: 1, peer: 9}.encode(), seeds()[0]},
	} {
		t.Run(name, func(t *testing.T) {
			before := far.Counters().Refused
			s := strange(t, func(s *stranger) {
				copy(s.memory.Bytes(), dials.message)
				conn, err := s.Dial(addr, rdma.DialConfig{PrivateData: dials.private})
				s.Fail(err)
				conn.SetUserData(len(dials.message))
			})
			require.Error(t, <-s.ended)
			require.Equal(t, before+1, far.Counters().Refused)
		})
	}
	dial(t, open(t, 1), far, "blocks")
}

// What accepts and is no agent is refused.
func TestHostileListener(t *testing.T) {
	near := open(t, 1)
	for name, private := range map[string][]byte{"another protocol": []byte("hello"), "an epoch of zero": {0x56, 0x54, 0x47, 1, 12: 0, 13: 1}} {
		t.Run(name, func(t *testing.T) {
			addr := make(chan string, 1)
			strange(t, func(s *stranger) {
				l, err := s.Listen("127.0.0.1:0", rdma.ListenConfig{PrivateData: private})
				s.Fail(err)
				addr <- l.Addr().String()
			})
			before := near.Counters().Refused
			_, err := near.Dial(testContext(t), <-addr)
			require.ErrorIs(t, err, ErrProtocol)
			require.Equal(t, before+1, near.Counters().Refused)
		})
	}
}
