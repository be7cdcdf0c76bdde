package local

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every peer is looked at in the end, a busy one with every pass, and whatever comes, goes or falls
// silent, the list holds exactly those that it should.
func TestPollList(t *testing.T) {
	var l pollList
	random := rand.New(rand.NewPCG(1, 2))
	here := map[*Peer]bool{}
	ready := map[*Peer]bool{}
	for range 2000 {
		if random.IntN(10) == 0 && len(here) < 100 {
			p := &Peer{channel: new(Channel)}
			here[p] = true
			l.add(p)
		}
		for p := range here {
			switch random.IntN(500) {
			case 0:
				l.remove(p)
				delete(here, p)
				delete(ready, p)
			case 1, 2:
				ready[p] = true
			case 3:
				p.emptyPasses = maxEmptyPasses - 1
			}
		}
		busy := map[*Peer]bool{}
		for _, p := range l.peers[:l.busy] {
			busy[p] = true
		}
		looked := 0
		l.pass(func(p *Peer) bool {
			require.True(t, here[p])
			looked++
			delete(busy, p)
			if random.IntN(300) == 0 { // its channel has ended
				p.channel = nil
				l.remove(p)
				delete(here, p)
				delete(ready, p)
				return true
			}
			had := ready[p]
			delete(ready, p)
			return had
		})
		require.Empty(t, busy)
		require.LessOrEqual(t, looked, 100+idleChecks)
		require.Len(t, l.peers, len(here))
		for i, p := range l.peers {
			require.True(t, here[p])
			require.Equal(t, i, p.index)
		}
	}
	for _, p := range l.peers {
		ready[p] = true
	}
	for range len(l.peers)/idleChecks + 1 {
		l.pass(func(p *Peer) bool {
			delete(ready, p)
			return false
		})
	}
	require.Empty(t, ready)
	for len(l.peers) > 0 {
		l.remove(l.peers[0])
	}
	require.Zero(t, l.busy)
}

// What is idle costs a pass nothing, however much of it there is.
func TestPollListIdle(t *testing.T) {
	var l pollList
	for range 1000 {
		l.add(&Peer{})
	}
	for range maxEmptyPasses {
		l.pass(func(*Peer) bool { return false })
	}
	looked := 0
	l.pass(func(*Peer) bool { looked++; return false })
	require.Equal(t, idleChecks, looked)
}
