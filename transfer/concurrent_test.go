package transfer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// Everything may be called at the same time, also beside Close, and all ends.
func TestConcurrent(t *testing.T) { overBoth(t, concurrent) }

func concurrent(t *testing.T, open opener) {
	ctx := testContext(t)
	var agents []*Agent
	for i := range 3 {
		agents = append(agents, open(t, 1+i%2, func(c *Config) {
			c.CacheBytes, c.CacheEntries, c.Depth, c.Piece, c.DialTimeout = 1<<16, 8, 8, 4096, time.Second
		}))
		register(t, agents[i], "blocks", 1<<20)
	}
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			for _, err := a.Note(ctx); err == nil; _, err = a.Note(ctx) {
			}
		})
		wg.Go(func() {
			for {
				time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
				a.endAConnection(rand.New(rand.NewPCG(rand.Uint64(), 1)))
				if s, err := a.Register("other", make([]byte, 1000), all); err == nil {
					_ = s.Close()
				} else {
					return
				}
			}
		})
		for j := range 2 {
			other := agents[(i+1+j)%3]
			var mu sync.Mutex
			var shared *Peer
			for range 3 {
				wg.Go(func() {
					mine := make([]byte, 1<<17)
					for {
						mu.Lock()
						p := shared
						if p == nil || rand.IntN(50) == 0 {
							if p != nil {
								p.Close()
							}
							var err error
							if p, err = a.Dial(ctx, other.Addrs()[0].String()); err != nil {
								p = nil
							}
							shared = p
						}
						mu.Unlock()
						a.mu.Lock()
						closed := a.closed
						a.mu.Unlock()
						if closed != nil {
							return
						}
						if p == nil {
							continue
						}
						short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(1000))*time.Millisecond)
						remote, err := p.Segment(short, "blocks")
						cancel()
						if err != nil {
							continue
						}
						b := Batch{Priority: Priority(rand.IntN(3) - 1)}
						for range rand.IntN(20) {
							at, n := rand.IntN(1<<16)&^7, 1+rand.IntN(1<<16)
							switch rand.IntN(3) {
							case 0:
								b.Read(remote, at, mine[at:][:n])
							case 1:
								b.Read(remote, at, make([]byte, 1+rand.IntN(1<<15)))
							default:
								if a.cfg.Transport == verbs.RC {
									b.FetchAdd(remote, 1<<18+at, 1)
								}
							}
						}
						b.Note(p, 1)
						h, err := a.Submit(&b)
						if err != nil {
							continue
						}
						for range rand.IntN(3) {
							wg.Go(func() {
								time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
								h.Cancel()
								h.Progress()
								_ = h.Item(0)
							})
						}
						assert.NotErrorIs(t, h.Wait(ctx), context.DeadlineExceeded)
					}
				})
			}
		}
	}
	for _, a := range agents {
		time.Sleep(time.Duration(100+rand.IntN(1000)) * time.Millisecond)
		require.NoError(t, a.Close())
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		panic("something hangs")
	}
}

// Notes that nobody has taken do not keep an agent from closing.
func TestCloseWithNotes(t *testing.T) { overBoth(t, closeWithNotes) }

func closeWithNotes(t *testing.T, open opener) {
	near, far := open(t, 1), open(t, 1)
	p, err := near.Dial(testContext(t), far.Addrs()[0].String())
	require.NoError(t, err)
	var b Batch
	for i := range 10 {
		b.Note(p, uint32(i))
	}
	require.NoError(t, submit(t, near, &b).Wait(testContext(t)))
	require.NoError(t, far.Close())
}

// An agent can dial itself.
func TestDialsItself(t *testing.T) { overBoth(t, dialsItself) }

func dialsItself(t *testing.T, open opener) {
	near := open(t, 2)
	register(t, near, "blocks", 1<<20)
	mine := register(t, near, "", 1<<20)
	remote := dial(t, near, near, "blocks")
	var b Batch
	b.Write(remote, 0, mine.Bytes())
	b.Note(remote.Peer(), 1)
	require.NoError(t, submit(t, near, &b).Wait(testContext(t)))
	_, err := near.Note(testContext(t))
	require.NoError(t, err)
	remote.Peer().Close()
}
