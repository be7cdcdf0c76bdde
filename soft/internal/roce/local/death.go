package local

import "runtime/debug"

// maxReceives bounds how often a socket is read for packets that came before another event.
const maxReceives = 64

// checkPeerDied finds out whether the process at the other end of a channel that was cut off,
// or that stalled, is dead. If so, it fails the connections to that process: none of them will
// ever respond.
func (l *Peers) checkPeerDied(c *Channel) {
	died := c.PeerProcessDied(l.ctx)
	shard := l.cfg.Shard
	shard.Lock()
	defer shard.Unlock()
	l.unresolved--
	if !died || shard.Closed() {
		return
	}
	l.counters.Died++
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see dma.Fault
	for _, e := range l.cfg.Endpoints {                      // packets sent by UDP before there was a channel
		for n := 0; n < maxReceives && e.Receive(l.cfg.Now()); n++ {
		}
	}
	for _, p := range l.peers {
		for path := range p.paths {
			if path.cutOff == c {
				path.queuePair.PeerGone()
			}
		}
	}
	shard.SendReady(l.cfg.Now())
}
