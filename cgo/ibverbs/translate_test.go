//go:build linux && cgo && verbs

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/verbena-rdma/verbena/verbs"
)

// What the numbers of enum ibv_event_type stand for (ibv_get_async_event(3)). rxe
// sends few of them: here all go the way from libibverbs to those who asked.
func TestTranslateEvents(t *testing.T) {
	const cq, srq = 0x1000, 0x2000
	d := &device{
		queues: map[uint64]*completionQueue{cq: {}},
		shared: map[uint64]*sharedReceiveQueue{srq: {}},
	}
	pair := func(kind verbs.EventType) *verbs.Event { return &verbs.Event{Type: kind, QPN: 17} }
	port := func(kind verbs.EventType) *verbs.Event { return &verbs.Event{Type: kind, Port: 2} }
	for kind, want := range []*verbs.Event{
		{Type: verbs.EventCQError, CQ: d.queues[cq]},
		pair(verbs.EventQPFatal),
		pair(verbs.EventQPRequestError),
		pair(verbs.EventQPAccessError),
		pair(verbs.EventCommEstablished),
		nil, // send queue drained
		nil, // path migrated
		nil, // path migration failed
		{Type: verbs.EventDeviceFatal},
		port(verbs.EventPortActive),
		port(verbs.EventPortError),
		port(verbs.EventLIDChange),
		port(verbs.EventPKeyChange),
		nil, // subnet manager changed
		{Type: verbs.EventSRQError, SRQ: d.shared[srq]},
		{Type: verbs.EventSRQLimitReached, SRQ: d.shared[srq]},
		pair(verbs.EventQPLastWQEReached),
		nil, // client shall register again
		port(verbs.EventGIDChange),
		nil, // work queue fatal
		nil, // not known yet
	} {
		from := rawEvent{kind: int32(kind)}
		if want != nil {
			from.qpn, from.port = want.QPN, want.Port
			switch {
			case want.CQ != nil:
				from.object = cq
			case want.SRQ != nil:
				from.object = srq
			}
		}
		got, ok := d.translate(from)
		if want == nil {
			assert.False(t, ok, "event %d", kind)
			continue
		}
		assert.True(t, ok, "event %d", kind)
		assert.Equal(t, *want, got, "event %d", kind)
	}
	_, ok := d.translate(rawEvent{kind: -1})
	assert.False(t, ok)
	got, ok := d.translate(rawEvent{kind: 14, object: 0x3000})
	assert.True(t, ok)
	assert.Nil(t, got.SRQ, "a queue that is being closed is not named")
}

// All subscribers get an event. They get the end of the device once, also those who
// subscribe after it.
func TestDeliverEvents(t *testing.T) {
	d := &device{events: events{handlers: make(map[int]func(verbs.Event))}}
	var first, second, late []verbs.EventType
	cancel := d.SubscribeEvents(func(e verbs.Event) { first = append(first, e.Type) })
	d.SubscribeEvents(func(e verbs.Event) { second = append(second, e.Type) })
	for _, kind := range []verbs.EventType{
		verbs.EventQPAccessError, verbs.EventQPAccessError, verbs.EventDeviceFatal, verbs.EventDeviceFatal,
	} {
		d.events.deliver(verbs.Event{Type: kind})
	}
	want := []verbs.EventType{verbs.EventQPAccessError, verbs.EventQPAccessError, verbs.EventDeviceFatal}
	assert.Equal(t, want, first)
	assert.Equal(t, want, second)
	cancel()
	d.SubscribeEvents(func(e verbs.Event) { late = append(late, e.Type) })
	d.events.deliver(verbs.Event{Type: verbs.EventPortError})
	assert.Equal(t, want, first, "it has cancelled")
	assert.Equal(t, []verbs.EventType{verbs.EventDeviceFatal, verbs.EventPortError}, late)
}

func TestRemovedIn(t *testing.T) {
	for message, want := range map[string]string{
		"remove@/devices/virtual/infiniband_verbs/uverbs0\x00ACTION=remove\x00SUBSYSTEM=infiniband_verbs\x00SEQNUM=7\x00":      "uverbs0",
		"remove@/devices/pci0000:00/0000:00:02.0/infiniband_verbs/uverbs12\x00SUBSYSTEM=infiniband_verbs\x00ACTION=remove\x00": "uverbs12",
		"add@/devices/virtual/infiniband_verbs/uverbs0\x00ACTION=add\x00SUBSYSTEM=infiniband_verbs\x00":                        "",
		"remove@/devices/virtual/net/uverbs0\x00ACTION=remove\x00SUBSYSTEM=net\x00":                                            "",
		"remove@/devices/virtual/infiniband_verbs/uverbs0\x00X=SUBSYSTEM=infiniband_verbs\x00":                                 "",
		"remove@":                     "",
		"":                            "",
		"libudev\x00\xfe\xed\xca\xfe": "",
	} {
		assert.Equal(t, want, removedIn([]byte(message)), "%q", message)
	}
}
