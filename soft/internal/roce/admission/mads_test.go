package admission

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/link"
)

// fixture is a control with one entry, whose filter and clock the test sets.
type fixture struct {
	*Control
	entry  *Entry
	now    time.Duration
	filter link.Filter
}

func newFixture() *fixture {
	f := &fixture{now: time.Hour}
	f.Control = New(Config{Device: "soft-test", Now: func() time.Duration { return f.now }, Deadline: func(time.Duration) {}})
	f.entry = f.Entry(netip.MustParseAddrPort("192.0.2.100:4791"), func(set link.Filter) error {
		f.filter = set
		return nil
	})
	return f
}

// A source has its burst, then its rate, and does not take those of others.
func TestMessagesAreSharedFairly(t *testing.T) {
	f := newFixture()
	m, e := &f.MADs, f.entry
	unknown, friend := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for m.sources.of(unknown) == m.sources.of(friend) {
		m.sources = newHostBuckets(Random)
	}
	flood := func(now time.Duration) (n int) {
		for range 4 * MADBurst {
			if m.Admit(e, unknown, false, now) {
				n++
			}
		}
		return n
	}
	now := time.Hour
	assert.Equal(t, MADBurst, flood(now))
	assert.Equal(t, []netip.Addr{unknown}, f.filter.Ignored)
	assert.False(t, m.Admit(e, unknown, true, now), "not for what it knows either")
	assert.True(t, m.Admit(e, friend, false, now))
	assert.Equal(t, 1024, flood(now+time.Second))
	m.Expire(now + time.Minute)
	assert.Empty(t, f.filter.Ignored)
	assert.Equal(t, MADBurst, flood(now+time.Minute))
}

// What was of use costs nothing, however much there is of it.
func TestUsefulMessagesAreFree(t *testing.T) {
	f := newFixture()
	m, e := &f.MADs, f.entry
	peer := netip.MustParseAddr("2001:db8::1")
	for i := range 100 * MADBurst {
		require.True(t, m.Admit(e, peer, i%2 == 0, time.Hour))
		m.Refund(peer, i%2 == 0)
	}
	assert.Empty(t, m.ignored)
}

// Forged addresses take no memory, and no more than the tokens of all: messages of
// known connections do not need these.
func TestMessagesOfForgedAddresses(t *testing.T) {
	f := newFixture()
	m, e := &f.MADs, f.entry
	now := time.Hour
	admitted := 0
	for i := range uint32(1 << 18) {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], i)
		if m.Admit(e, netip.AddrFrom4(b), false, now) {
			admitted++
		}
	}
	assert.Equal(t, sharedBurst, admitted)
	assert.LessOrEqual(t, len(m.ignored), 16)
	assert.False(t, m.Admit(e, netip.MustParseAddr("2001:db8::1"), false, now))
	assert.True(t, m.Admit(e, netip.MustParseAddr("2001:db8::1"), true, now))
}
