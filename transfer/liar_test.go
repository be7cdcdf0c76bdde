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
	seed := rand.Uint64()
	t.Log("seed", seed)
	rnd, says := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2)) // of this goroutine; of the engine's
	devices := uint8(1 + rnd.IntN(3))
	addr := make(chan netip.AddrPort, 1)
	s := strange(t, func(s *stranger) {
		var l *rdma.Listener
		rkey, err := s.memory.ExportKey(s.PD())
		s.Fail(err)
		l, err = s.Listen("127.0.0.1:0", rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) {
			k := key{s.memory.Addr(), rkey}
			r := []*record{{Name: [64]byte{'a'}, Size: []uint64{8, 1000, math.MaxInt64, 1 << 40}[says.IntN(4)], Perm: uint8(remotePermissions), Devices: devices}}
			for i := range devices {
				r[0].Keys[i] = []key{k, {math.MaxUint64 - r[0].Size, 7}, {0, rkey}, {says.Uint64() >> 2, says.Uint32()}}[says.IntN(4)]
			}
			writeDirectory(s.memory.Bytes(), r)
			a := rcAcceptance{Magic: magic, Epoch: 1 + says.Uint64N(2), Device: uint8(says.IntN(int(devices))), Devices: devices, Known: uint8(says.IntN(2)), Notes: says.Uint64N(3) - 1, Directory: k}
			for i := range devices {
				at := l.Addr()
				if says.IntN(3) == 0 {
					at = netip.MustParseAddrPort("127.0.0.1:9")
				}
				a.Addrs[i] = address{at.Addr().As16(), at.Port()}
			}
			conn, err := q.Accept(rdma.AcceptConfig{PrivateData: encode(a)})
			if err != nil {
				_ = q.Reject(busy)
			} else if says.IntN(2) == 0 {
				time.AfterFunc(time.Duration(says.IntN(100))*time.Millisecond, func() { _ = s.engine.Do(func() { _ = conn.Close() }) })
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
	dialled, submitted := 0, 0
	for round := 0; round < 4 || dialled == 0 || submitted == 0; round++ {
		require.Less(t, round, 1000, "nothing was believed")
		short, cancel := context.WithTimeout(ctx, time.Second)
		p, err := near.Dial(short, at)
		cancel()
		if err != nil {
			continue
		}
		dialled++
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
				at := rnd.IntN(s.Len())
				switch rnd.IntN(3) {
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
			submitted++
			time.Sleep(time.Duration(rnd.IntN(100)) * time.Millisecond)
			h.Cancel()
			<-h.Done()
		}
		p.Close()
		var b Batch
		b.Write(remote, 0, mine.Bytes())
		require.NoError(t, submit(t, near, &b).Wait(ctx))
	}
}
