package admission

import (
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// MADs limits the work that unknown hosts can cause by management datagrams (MADs) to queue
// pair 1. A message takes a token of its source and one shared by all sources, before its
// checksum is computed. A useful message returns both, a request as soon as it has led to a
// connection. So peers that connect are limited only in the number of messages in progress,
// and a flood of useless messages is dropped after a look at the headers.
//
// A flood that drains the shared tokens blocks only new requests: messages that name one of
// the device's connections do not need these tokens. The lock of the first shard is held.
type MADs struct {
	control *Control
	sources hostBuckets
	shared  bucket
	ignored []ignoredSource // at most link.MaxIgnored
}

// ignoredSource is a source that has used up its tokens. The system drops its messages for
// some time: waking up for them and reading them costs the device more than refusing them.
type ignoredSource struct {
	entry *Entry
	addr  netip.Addr
	until time.Duration
}

// ignoreTime is short, for the sake of hosts that share the address with a flood. Afterwards
// there are tokens for a few messages again.
const ignoreTime = 100 * time.Millisecond

// Limits of tokens that are not returned: the size of a bucket, and the interval at which one
// is added.
const (
	MADBurst       = 4096
	madInterval    = time.Second / 1024
	sharedBurst    = 4 * MADBurst
	sharedInterval = madInterval / 4
)

// Admit takes the tokens of a message, or none if one is missing. known: the message names a
// connection of the device with its source. It then takes only the source's token.
func (m *MADs) Admit(e *Entry, source netip.Addr, known bool, now time.Duration) bool {
	own := m.sources.of(source)
	switch {
	case !own.has(now, MADBurst, madInterval):
		m.ignore(e, source, now)
		return false
	case known:
	case !m.shared.has(now, sharedBurst, sharedInterval):
		return false
	default:
		m.shared.take(now, sharedInterval)
	}
	own.take(now, madInterval)
	return true
}

// Refund returns the tokens that Admit took for a useful message.
func (m *MADs) Refund(source netip.Addr, known bool) {
	m.sources.of(source).full -= madInterval
	if !known {
		m.shared.full -= sharedInterval
	}
}

// ignore makes the system drop messages from a source for ignoreTime.
func (m *MADs) ignore(e *Entry, source netip.Addr, now time.Duration) {
	if len(m.ignored) >= link.MaxIgnored || slices.ContainsFunc(m.ignored, func(s ignoredSource) bool { return s.entry == e && s.addr == source }) {
		return
	}
	m.ignored = append(m.ignored, ignoredSource{e, source, now + ignoreTime})
	m.apply(e)
	m.control.cfg.Deadline(now + ignoreTime)
}

// Expire ends ignore for the sources whose time is over.
func (m *MADs) Expire(now time.Duration) {
	for i := 0; i < len(m.ignored); {
		s := m.ignored[i]
		if now < s.until {
			m.control.cfg.Deadline(s.until)
			i++
			continue
		}
		m.ignored = slices.Delete(m.ignored, i, i+1)
		m.apply(s.entry)
	}
}

// apply sets the ignored sources of an entry.
func (m *MADs) apply(e *Entry) {
	var sources [link.MaxIgnored]netip.Addr
	n := 0
	for _, s := range m.ignored {
		if s.entry == e {
			sources[n] = s.addr
			n++
		}
	}
	e.ignore(sources[:n])
}
