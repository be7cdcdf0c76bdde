package link

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (s *Socket) Wait(deadline time.Time) error { return s.WaitSet().Wait(deadline) }
func (s *Socket) Interrupt()                    { s.WaitSet().Interrupt() }
func (s *Socket) SetDeadline(t time.Time)       { s.WaitSet().SetDeadline(t) }

// rounds are enough that the two goroutines of a test meet in every order.
const rounds = 300

func TestWaitEndsWithData(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		a, b := listen(t, cfg), listen(t, cfg)
		done := make(chan error)
		go func() { // echoes
			for n := 0; n < rounds; {
				if err := b.Wait(time.Time{}); err != nil {
					done <- err
					return
				}
				got, err := b.Receive()
				if err != nil {
					done <- err
					return
				}
				for _, d := range got {
					put(b, a.Addr(), d.Data)
					n++
				}
				if _, err := b.Flush(); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		for range rounds {
			put(a, b.Addr(), []byte("ping"))
			flush(t, a)
			require.Equal(t, "ping", string(take(t, a, 1)[0].Data))
		}
		require.NoError(t, <-done)
	})
}

func TestWaitEndsAtDeadline(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		for range 3 {
			start := time.Now()
			require.NoError(t, s.Wait(start.Add(10*time.Millisecond)))
			assert.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)
		}
		require.NoError(t, s.Wait(time.Now().Add(-time.Second)))
		require.NoError(t, s.Wait(time.Now()))
	})
}

// A Wait that ended at its deadline must not make the next one miss packets, whatever arrived
// in between and however it was received.
func TestWaitAfterPolling(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		a, b := listen(t, cfg), listen(t, cfg)
		for range 50 {
			require.NoError(t, b.Wait(time.Now().Add(100*time.Microsecond)))
			put(a, b.Addr(), []byte("polled"))
			flush(t, a)
			poll(t, b)

			require.NoError(t, b.Wait(time.Now().Add(100*time.Microsecond)))
			got, err := b.Receive()
			require.NoError(t, err)
			require.Empty(t, got)

			done := make(chan error)
			go func() { done <- b.Wait(time.Time{}) }()
			put(a, b.Addr(), []byte("awaited"))
			flush(t, a)
			require.NoError(t, <-done)
			got, err = b.Receive()
			require.NoError(t, err)
			require.Len(t, got, 1)
		}
	})
}

// poll takes one packet without Wait.
func poll(t *testing.T, s *Socket) {
	for limit := time.Now().Add(testTimeout); ; {
		got, err := s.Receive()
		require.NoError(t, err)
		if len(got) > 0 {
			return
		}
		require.Less(t, time.Now(), limit)
	}
}

// Queued data ends every Wait until it has been received.
func TestWaitSeesWhatIsQueued(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		a, b := listen(t, cfg), listen(t, cfg)
		put(a, b.Addr(), []byte("x"))
		flush(t, a)
		for range 3 {
			require.NoError(t, b.Wait(time.Time{}))
		}
		take(t, b, 1)
	})
}

func TestInterrupt(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		s.Interrupt()
		s.Interrupt()
		require.NoError(t, s.Wait(time.Time{}))

		// It is used up: the next Wait lasts until its deadline.
		start := time.Now()
		require.NoError(t, s.Wait(start.Add(10*time.Millisecond)))
		assert.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)

		done := make(chan error)
		for range rounds {
			go func() { done <- s.Wait(time.Time{}) }()
			s.Interrupt()
			require.NoError(t, <-done)
		}
	})
}

// SetDeadline must not swallow an interrupt.
func TestInterruptAndSetDeadline(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		done := make(chan error)
		for range rounds {
			far := time.Now().Add(time.Hour)
			go func() { done <- s.Wait(far) }()
			go s.SetDeadline(far.Add(-time.Minute))
			s.Interrupt()
			require.NoError(t, <-done)
		}
	})
}

func TestSetDeadline(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		s := listen(t, cfg)
		done := make(chan error)
		for range rounds / 3 { // each lasts for a millisecond
			go func() { done <- s.Wait(time.Now().Add(time.Hour)) }()
			s.SetDeadline(time.Now().Add(100 * time.Microsecond))
			require.NoError(t, <-done)
		}

		// It never moves a deadline to a later time.
		start := time.Now()
		go func() { done <- s.Wait(start.Add(10 * time.Millisecond)) }()
		s.SetDeadline(start.Add(time.Hour))
		s.SetDeadline(time.Time{})
		require.NoError(t, <-done)
		assert.GreaterOrEqual(t, time.Since(start), 10*time.Millisecond)
	})
}

// Several sockets share a set. Those that a wait has not ended for are not ready.
func TestWaitSet(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		set, err := NewWaitSet(cfg.Portable)
		require.NoError(t, err)
		defer func() { require.NoError(t, set.Close()) }()
		a := listen(t, cfg)
		cfg.WaitSet = set
		b, c := listen(t, cfg), listen(t, cfg)
		for i := range 20 {
			to, other := b, c
			if i%2 == 1 {
				to, other = c, b
			}
			put(a, to.Addr(), []byte("x"))
			flush(t, a)
			require.NoError(t, set.Wait(time.Time{}))
			assert.True(t, to.Ready())
			assert.True(t, cfg.Portable || !other.Ready())
			take(t, to, 1)
			got, err := to.Receive()
			require.NoError(t, err)
			require.Empty(t, got)
			require.True(t, cfg.Portable || !to.Ready())
		}
		ended := 0
		b.EndWait(false)
		for range 4 {
			require.False(t, !cfg.Portable && b.Ready())
			put(a, b.Addr(), []byte("x"))
			flush(t, a)
			require.NoError(t, set.Wait(time.Now().Add(time.Millisecond)))
			if b.Ready() {
				ended++
			}
			poll(t, b)
			_, err := b.Receive()
			require.NoError(t, err)
		}
		// It may be armed for one packet, which need not be the first: a packet may come after its wait.
		require.True(t, cfg.Portable || ended <= 1, "its packets end %d waits", ended)
		b.EndWait(true)
		done := make(chan error)
		go func() { done <- set.Wait(time.Time{}) }()
		put(a, b.Addr(), []byte("x"))
		flush(t, a)
		require.NoError(t, <-done)
	})
}

func TestCloseEndsWait(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		for range 30 {
			s := listen(t, cfg)
			done := make(chan error)
			go func() { done <- s.Wait(time.Time{}) }()
			require.NoError(t, s.Close())
			require.ErrorIs(t, <-done, net.ErrClosed)
		}
	})
}

func TestEarlier(t *testing.T) {
	a := time.Unix(100, 0)
	b := a.Add(1)
	for _, c := range [][3]time.Time{{a, b, a}, {b, a, a}, {a, {}, a}, {{}, a, a}, {{}, {}, {}}} {
		assert.Equal(t, c[2], earlier(c[0], c[1]))
	}
}

// Poll finds what a wait would return for, and leaves interruptions to Wait.
func TestPoll(t *testing.T) {
	forEach(t, func(t *testing.T, cfg Config) {
		set, err := NewWaitSet(cfg.Portable)
		require.NoError(t, err)
		a := listen(t, cfg)
		cfg.WaitSet = set
		b := listen(t, cfg)
		for range 20 {
			require.NoError(t, set.Poll())
			require.True(t, cfg.Portable || !b.Ready())
			put(a, b.Addr(), []byte("x"))
			flush(t, a)
			require.Eventually(t, func() bool {
				require.NoError(t, set.Poll())
				return b.Ready()
			}, testTimeout, time.Millisecond)
			take(t, b, 1)
			got, err := b.Receive()
			require.NoError(t, err)
			require.Empty(t, got)
		}
		set.Interrupt()
		require.NoError(t, set.Poll())
		require.NoError(t, set.Wait(time.Time{}))
		require.NoError(t, set.Close())
		require.ErrorIs(t, set.Poll(), net.ErrClosed)
	})
}
