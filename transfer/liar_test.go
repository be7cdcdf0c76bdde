package transfer

import (
	"context"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rdma"
)

// Whatever an acceptor says, of itself and of its memory, the agent neither panics nor hangs, and serves others.
func TestLiar(t *testing.T) {
	ctx := testContext(t)
	near, far := open(t, 2, func(c *Config) { c.DialTimeout = 300 * time.Millisecond }), open(t, 1)
	register(t, far, "blocks", 1<<16)
	remote := dial(t, near, far, "blocks")
	mine := register(t, near, "", 1<<16)
	devices := uint8(1 + rand.IntN(3))
	addr := make(chan netip.AddrPort, 1)
	s := strange(t, func(s *stranger) {
		var l *rdma.Listener
		rkey, err := s.memory.ExportKey(s.PD())
		s.Fail(err)
		l, err = s.Listen("127.0.0.1:0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			k := key{s.memory.Addr(), rkey}
			r := []*record{{Name: [64]byte{'a'}, Size: []uint64{8, 1000, math.MaxInt64, 1 << 40}[rand.IntN(4)], Perm: uint8(remotePermissions), Devices: devices}}
			for i := range devices {
				r[0].Keys[i] = []key{k, {math.MaxUint64 - r[0].Size, 7}, {0, rkey}, {rand.Uint64() >> 2, rand.Uint32()}}[rand.IntN(4)]
			}
			writeDirectory(s.memory.Bytes(), r)
			a := acceptance{Magic: magic, Epoch: 1 + rand.Uint64N(2), Device: uint8(rand.IntN(int(devices))), Devices: devices, Known: uint8(rand.IntN(2)), Notes: rand.Uint64N(3) - 1, Directory: k}
			for i := range devices {
				at := l.Addr()
				if rand.IntN(3) == 0 {
					at = netip.MustParseAddrPort("127.0.0.1:9")
				}
				a.Addrs[i] = address{at.Addr().As16(), at.Port()}
			}
			conn, err := q.Accept(rdma.AcceptConfig{PrivateData: encode(a)})
			if err != nil {
				_ = q.Reject(busy)
			} else if rand.IntN(2) == 0 {
				time.AfterFunc(time.Duration(rand.IntN(100))*time.Millisecond, func() { _ = s.engine.Do(func() { _ = conn.Close() }) })
			}
		}})
		s.Fail(err)
		addr <- l.Addr()
	})
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case <-s.ended:
			case <-over:
				return
			}
		}
	}()
	at := (<-addr).String()
	for range 4 {
		short, cancel := context.WithTimeout(ctx, time.Second)
		p, err := near.Dial(short, at)
		cancel()
		if err != nil {
			continue
		}
		for range 5 {
			short, cancel := context.WithTimeout(ctx, time.Second)
			s, err := p.Segment(short, "a")
			cancel()
			if err != nil {
				continue
			}
			var b Batch
			b.Note(p, 1)
			for range 10 {
				at := rand.IntN(s.Len())
				switch rand.IntN(3) {
				case 0:
					b.Read(s, at&^7, mine.Bytes()[:8])
				case 1:
					b.Write(s, at&^7, mine.Bytes()[:8])
				default:
					b.FetchAdd(s, at&^7, 1)
				}
			}
			h, err := near.Submit(&b)
			if err != nil {
				continue
			}
			time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
			h.Cancel()
			<-h.Done()
		}
		p.Close()
		var b Batch
		b.Write(remote, 0, mine.Bytes())
		require.NoError(t, submit(t, near, &b).Wait(ctx))
	}
}
