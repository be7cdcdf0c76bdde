package samples

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/descriptor"
	"github.com/verbena-rdma/verbena/internal/pair"
)

// The steps and the values of both sides, in their order.
func TestSyncEventSteps(t *testing.T) {
	r := runPair(t, byName(t, "rdma_sync_event_requester"), pair.Options{Way: pair.Files})
	assert.Equal(t, `set to 0xd0ca: 53450 (8 bytes, CRC-32C 1f56710a)
got 0xd0cb: 53451 (8 bytes, CRC-32C ed3df209)
set to 0xffffffffffffffff: 18446744073709551615 (8 bytes, CRC-32C 48674bc7)
`, r.Requester.Stdout)
	assert.Equal(t, `was set to 0xd0ca: 53450 (8 bytes, CRC-32C 1f56710a)
added 1, which makes 0xd0cb: 53451 (8 bytes, CRC-32C ed3df209)
was set to 0xffffffffffffffff: 18446744073709551615 (8 bytes, CRC-32C 48674bc7)
`, r.Responder.Stdout)
}

func TestSyncEventOverABadNetwork(t *testing.T) {
	for _, faults := range []string{"loss=0.1", "duplicate=0.3&reorder=0.3", "corrupt=0.1"} {
		device := []string{"-d", "soft-lo?" + faults}
		runPair(t, byName(t, "rdma_sync_event_requester"), pair.Options{Way: pair.Dir, RequesterArgs: device, ResponderArgs: device})
	}
}

// A memory map where a sync event is needed, the other way round, and a sync event
// that is invalid.
func TestWrongResource(t *testing.T) {
	kinds := map[string][]byte{}
	for name, kind := range map[string]descriptor.Kind{"connection": descriptor.Connection, "memory": descriptor.MemoryMap, "event": descriptor.SyncEvent} {
		d, err := descriptor.Encode(kind, []byte("no such thing"))
		require.NoError(t, err)
		kinds[name] = d
	}
	tests := map[string]struct {
		program, resource string
		texts             []string
	}{
		"memory, not an event":     {"rdma_sync_event_requester", "memory", []string{"wrong kind", "sync event", "memory map"}},
		"connection, not an event": {"rdma_sync_event_requester", "connection", []string{"wrong kind", "sync event", "connection"}},
		"event, not memory":        {"rdma_write_requester", "event", []string{"wrong kind", "sync event", "memory map"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scratch := t.TempDir()
			theirs, resource := filepath.Join(scratch, "theirs"), filepath.Join(scratch, "resource")
			require.NoError(t, os.WriteFile(theirs, kinds["connection"], 0o600))
			require.NoError(t, os.WriteFile(resource, kinds[test.resource], 0o600))
			one(t, scratch, 1, test.program, []string{"-ld", filepath.Join(scratch, "ours"), "-re", theirs, "-m", resource, "-timeout", patience}, test.texts...)
		})
	}
	// Two programs that do not fit: one exports memory, the other expects an event.
	p := pair.Pair{Requester: "rdma_sync_event_requester", Responder: "rdma_read_responder", Memory: true}
	mismatch(t, p, pair.Options{Way: pair.Files}, "wrong kind")
	one(t, t.TempDir(), 2, "rdma_sync_event_requester", []string{"-ld", "a", "-re", "b"}, "need -m", "sync event")
}
