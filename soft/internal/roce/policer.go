package roce

import (
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// policer limits what strangers can have the device do for messages to queue pair 1. A
// message takes a token of its source and one of all sources, before its checksum is
// computed; one that was of use gives them back. So peers that connect, however
// many and however often, are not limited, but for how much they may have under way, and a
// flood of what leads to nothing is dropped before it costs more than to look at its headers.
//
// Those that see to it that the tokens of all are gone keep requests out, and nothing else:
// messages that name one of the device's connections do not need them.
type policer struct {
	sources hostBuckets
	all     bucket
	ignored []ignoredSource // at most link.MaxIgnored
}

// ignoredSource is a source whose messages the system drops for some time, since it has
// used up its tokens: a flood costs the device more to be woken for, and to be read, than to
// be refused.
type ignoredSource struct {
	endpoint *endpoint
	addr     netip.Addr
	until    time.Duration
}

// ignoreTime is short for those who share the address with a flood: afterwards there are
// tokens again for a few messages.
const ignoreTime = 100 * time.Millisecond

// Tokens that are not given back: how many there are at once, and how often one is added.
const (
	sourceBurst    = 4096
	sourceInterval = time.Second / 1024
	allBurst       = 4 * sourceBurst
	allInterval    = sourceInterval / 4
)

func newPolicer() *policer { return &policer{sources: newHostBuckets()} }

// admit takes the tokens of a message, or none where one is missing. A message that is
// known, since it names a connection of the device with its source, takes the source's alone.
func (p *policer) admit(e *endpoint, source netip.Addr, known bool, now time.Duration) bool {
	own := p.sources.of(source)
	switch {
	case !own.has(now, sourceBurst, sourceInterval):
		p.ignore(e, source, now)
		return false
	case known:
	case !p.all.has(now, allBurst, allInterval):
		return false
	default:
		p.all.take(now, allInterval)
	}
	own.take(now, sourceInterval)
	return true
}

// giveBack returns what admit took.
func (p *policer) giveBack(source netip.Addr, known bool) {
	p.sources.of(source).full -= sourceInterval
	if !known {
		p.all.full -= allInterval
	}
}

// ignore has the system drop what comes from a source.
func (p *policer) ignore(e *endpoint, source netip.Addr, now time.Duration) {
	if len(p.ignored) >= link.MaxIgnored || slices.ContainsFunc(p.ignored, func(s ignoredSource) bool { return s.endpoint == e && s.addr == source }) {
		return
	}
	p.ignored = append(p.ignored, ignoredSource{e, source, now + ignoreTime})
	p.apply(e)
	e.device.main.noteDeadline(now + ignoreTime)
}

// expire ends what ignore began.
func (p *policer) expire(now time.Duration) {
	for i := 0; i < len(p.ignored); {
		s := p.ignored[i]
		if now < s.until {
			s.endpoint.device.main.noteDeadline(s.until)
			i++
			continue
		}
		p.ignored = slices.Delete(p.ignored, i, i+1)
		p.apply(s.endpoint)
	}
}

// apply tells the system what an endpoint ignores.
func (p *policer) apply(e *endpoint) {
	var sources [link.MaxIgnored]netip.Addr
	n := 0
	for _, s := range p.ignored {
		if s.endpoint == e {
			sources[n] = s.addr
			n++
		}
	}
	e.filter.ignore(sources[:n])
}
