package local

// pollList holds the peers with a channel. A pass checks the peers that have sent recently,
// and a few of the others in turn, so that more idle peers do not make it longer.
type pollList struct {
	peers  []*Peer // the first ones are busy
	busy   int
	cursor int // last idle peer checked
}

const (
	// idleChecks is how many idle peers a pass checks. With 1,000 idle peers, a packet waits
	// for at most 250 passes. It does not wait if the device sleeps, since the sender wakes it
	// then.
	idleChecks = 4
	// maxEmptyPasses is how many passes without a packet make a peer idle.
	maxEmptyPasses = 1 << 12
)

func (l *pollList) add(p *Peer) {
	p.index = len(l.peers)
	l.peers = append(l.peers, p)
	l.toBusy(p)
}

func (l *pollList) remove(p *Peer) {
	l.toIdle(p)
	last := len(l.peers) - 1
	l.swap(p.index, last)
	l.peers[last] = nil
	l.peers = l.peers[:last]
}

func (l *pollList) toBusy(p *Peer) {
	p.emptyPasses = 0
	if p.index >= l.busy {
		l.swap(p.index, l.busy)
		l.busy++
	}
}

func (l *pollList) toIdle(p *Peer) {
	if p.index < l.busy {
		l.busy--
		l.swap(p.index, l.busy)
	}
}

func (l *pollList) swap(i, j int) {
	l.peers[i], l.peers[j] = l.peers[j], l.peers[i]
	l.peers[i].index, l.peers[j].index = i, j
}

// pass calls receive for the busy peers and the next idle ones, and reports whether it
// returned true for any. receive may remove the peer that it is called for.
func (l *pollList) pass(receive func(*Peer) bool) bool {
	worked := false
	for i := l.busy - 1; i >= 0; i-- {
		p := l.peers[i]
		if receive(p) {
			p.emptyPasses, worked = 0, true
		} else if p.emptyPasses++; p.emptyPasses == maxEmptyPasses {
			l.toIdle(p)
		}
	}
	for range min(idleChecks, len(l.peers)-l.busy) {
		if l.cursor++; l.cursor >= len(l.peers) {
			l.cursor = l.busy
		}
		l.cursor = max(l.cursor, l.busy)
		if l.cursor >= len(l.peers) {
			break
		}
		if p := l.peers[l.cursor]; receive(p) {
			worked = true
			if p.channel != nil {
				l.toBusy(p)
			}
		}
	}
	return worked
}
