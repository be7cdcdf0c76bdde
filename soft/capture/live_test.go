package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/await"
	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/soft/capture"
	"github.com/verbena-rdma/verbena/verbs"
)

// end is one end of a connection on a device that records its packets.
type end struct {
	*rdma.Connections
	dev      *soft.Device
	memory   *mmap.Map
	capture  bytes.Buffer
	listener *rdma.Listener
	close    func()
}

func newEnd(t *testing.T, cfg soft.Config, config rdma.Config) *end {
	e := &end{}
	cfg.Capture = &e.capture
	var err error
	e.dev, err = soft.Open(cfg)
	require.NoError(t, err)
	engine := pe.New(pe.Config{})
	config.Engine, config.Permissions = engine, mmap.RemoteRead|mmap.RemoteAtomic
	e.Connections, err = rdma.New(e.dev, config)
	require.NoError(t, err)
	e.memory, err = mmap.Alloc(e.dev, 1<<20, mmap.LocalReadWrite|mmap.RemoteRead|mmap.RemoteWrite|mmap.RemoteAtomic)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	driven := make(chan error, 1)
	go func() { driven <- await.Run(ctx, engine) }()
	closed := false
	e.close = func() {
		if closed {
			return
		}
		closed = true
		cancel()
		assert.ErrorIs(t, <-driven, context.Canceled)
		assert.NoError(t, e.Close())
		assert.NoError(t, e.memory.Close())
		assert.NoError(t, engine.Close())
		assert.NoError(t, e.dev.Close())
	}
	t.Cleanup(e.close)
	require.NoError(t, await.Start(t.Context(), e))
	return e
}

// listen makes an end that accepts connections, and returns its address.
func (e *end) listen(t *testing.T, cfg rdma.ListenConfig) string {
	gids, err := e.dev.GIDs(1)
	require.NoError(t, err)
	require.NoError(t, await.Func(t.Context(), e.Engine(), func() (err error) {
		e.listener, err = e.Listen(net.JoinHostPort(gids[0].GID.Addr().String(), "0"), cfg)
		return err
	}))
	return e.listener.Addr().String()
}

// remote is the memory of a peer.
func (e *end) remote(t *testing.T, peer *end) *mmap.Map {
	desc, err := peer.memory.Export(peer.dev)
	require.NoError(t, err)
	m, err := mmap.Import(e.dev, desc)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// only returns the analysis of the only connection of a capture. A network that corrupts packets
// may change the number of the queue pair: such a packet is of no known connection.
func only(t *testing.T, b []byte, corrupted bool) *capture.Connection {
	r, err := capture.Analyse(bytes.NewReader(b))
	require.NoError(t, err)
	require.Len(t, r.Connections, 1, "%+v", r)
	if corrupted {
		r.Ignored.ICRCErrors = 0
	}
	assert.Zero(t, r.Ignored)
	return r.Connections[0]
}

// patient is for networks that lose nothing: a machine under load then repeats nothing.
const patient = time.Minute

// traffic dials, does the work, and disconnects. It returns the analyses of both captures.
func traffic(t *testing.T, client, server soft.Config, ackTimeout time.Duration, work func(ctx context.Context, conn *rdma.Connection, a, b *end)) (ours, theirs *capture.Connection) {
	a, b := newEnd(t, client, rdma.Config{AckTimeout: ackTimeout}), newEnd(t, server, rdma.Config{AckTimeout: ackTimeout})
	addr := b.listen(t, rdma.ListenConfig{})
	conn, err := await.Dial(t.Context(), a.Connections, addr, rdma.DialConfig{})
	require.NoError(t, err)
	work(t.Context(), conn, a, b)
	require.NoError(t, await.Stop(t.Context(), a))
	require.NoError(t, await.Stop(t.Context(), b))
	a.close()
	b.close()
	corrupted := server.Faults.Corrupt > 0
	return only(t, a.capture.Bytes(), corrupted), only(t, b.capture.Bytes(), corrupted)
}

func messages(c *capture.Connection) (list []string) {
	for _, e := range c.Events {
		list = append(list, fmt.Sprint(e.Message, " ", e.Times))
	}
	return list
}

// Each operation, over a network without faults.
func TestHealthy(t *testing.T) {
	ours, theirs := traffic(t, soft.Config{}, soft.Config{}, patient, func(ctx context.Context, conn *rdma.Connection, a, b *end) {
		remote := a.remote(t, b)
		require.NoError(t, await.Write(ctx, conn, bufinv.Source(a.memory, 0, 100_000), bufinv.Target(remote, 0, 100_000)))
		require.NoError(t, await.Read(ctx, conn, bufinv.Source(remote, 0, 50_000), bufinv.Target(a.memory, 0, 50_000)))
		_, err := await.FetchAdd(ctx, conn, bufinv.Target(remote, 0, 8), 1)
		require.NoError(t, err)
	})
	for _, c := range []*capture.Connection{ours, theirs} {
		assert.Equal(t, []string{"REQ 1", "REP 1", "RTU 1", "DREQ 1", "DREP 1"}, messages(c))
		assert.Equal(t, "RC", c.Service)
		assert.NotZero(t, c.Port)
		assert.NotZero(t, c.Ends[0].QPN)
		assert.NotZero(t, c.Ends[1].QPN)
		assert.Empty(t, c.Diagnosis)
		assert.Contains(t, c.Outcome, "disconnected by "+c.Ends[0].Addr.String())
		d := c.Sent[0]
		assert.GreaterOrEqual(t, d.Writes, int64(1)) // the library may write empty ones
		assert.Equal(t, [2]int64{1, 1}, [2]int64{d.Reads, d.Atomics})
		assert.EqualValues(t, 100_000, d.Bytes)
		assert.EqualValues(t, 50_000, c.Sent[1].Bytes)
		assert.Positive(t, d.RoundTrip.Count)
		for _, d := range c.Sent {
			assert.Zero(t, d.Repeats)
			assert.Zero(t, d.LostBefore+d.LostAfter+d.Gaps+d.Reordered+d.Unrecorded+d.ICRCErrors)
		}
	}
}

// Faults of the receiver's network, which its capture shows, and the sender's.
func TestFaults(t *testing.T) {
	writes := func(ctx context.Context, conn *rdma.Connection, a, b *end) {
		remote := a.remote(t, b)
		for range 20 {
			require.NoError(t, await.Write(ctx, conn, bufinv.Source(a.memory, 0, 100_000), bufinv.Target(remote, 0, 100_000)))
		}
	}
	for name, c := range map[string]struct {
		faults       soft.Faults
		congestion   bool
		ackTimeout   time.Duration
		ours, theirs string // in the diagnosis
		count        func(d *capture.Direction) int64
	}{
		"loss":       {soft.Faults{Loss: 0.05}, false, 0, "lost or reordered at least", "before the place of the capture", func(d *capture.Direction) int64 { return d.LostBefore }},
		"corruption": {soft.Faults{Corrupt: 0.05}, false, 0, "lost or reordered at least", "wrong ICRC", func(d *capture.Direction) int64 { return d.ICRCErrors }},
		"reordering": {soft.Faults{Reorder: 0.1}, false, 0, "", "", func(d *capture.Direction) int64 { return d.Reordered }},
		"marks":      {soft.Faults{Mark: 0.2}, true, patient, "congested", "congested", func(d *capture.Direction) int64 { return d.Marked }},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := traffic(t, soft.Config{CongestionControl: c.congestion}, soft.Config{Faults: c.faults, CongestionControl: c.congestion}, c.ackTimeout, writes)
			t.Logf("%+v\n%+v", ours, theirs)
			assert.Contains(t, ours.Diagnosis, c.ours)
			assert.Contains(t, theirs.Diagnosis, c.theirs)
			assert.Positive(t, c.count(&theirs.Sent[0]))
			for _, d := range []capture.Direction{ours.Sent[0], theirs.Sent[0]} {
				assert.EqualValues(t, 20*100_000, d.Bytes, "repeats do not count")
				assert.Zero(t, d.Unrecorded)
			}
		})
	}
}

// A device whose two queue pairs send to each other records each packet twice.
func TestBothEndsInOneCapture(t *testing.T) {
	for _, c := range []struct {
		loss       float64
		ackTimeout time.Duration
	}{{0, patient}, {0.1, 0}} {
		loss := c.loss
		e := newEnd(t, soft.Config{Faults: soft.Faults{Loss: loss, Delay: time.Microsecond}}, rdma.Config{MaxConnections: 2, AckTimeout: c.ackTimeout})
		conn, err := await.Dial(t.Context(), e.Connections, e.listen(t, rdma.ListenConfig{}), rdma.DialConfig{})
		require.NoError(t, err)
		remote := e.remote(t, e)
		for range 20 {
			require.NoError(t, await.Write(t.Context(), conn, bufinv.Source(e.memory, 0, 50_000), bufinv.Target(remote, 50_000, 50_000)))
		}
		require.NoError(t, await.Stop(t.Context(), e))
		e.close()
		c := only(t, e.capture.Bytes(), false)
		t.Logf("%+v", c)
		assert.EqualValues(t, 20*50_000, c.Sent[0].Bytes)
		assert.Zero(t, c.Sent[0].Repeats.Duplicated)
		assert.Zero(t, c.Sent[0].Gaps)
		if loss == 0 {
			assert.Zero(t, c.Sent[0].LostAfter)
			assert.Empty(t, c.Diagnosis)
		} else {
			assert.Positive(t, c.Sent[0].LostAfter)
			assert.Contains(t, c.Diagnosis, "lost or reordered at least")
		}
	}
}

// The peer's memory is named by a wrong key.
func TestWrongKey(t *testing.T) {
	a, b := newEnd(t, soft.Config{}, rdma.Config{}), newEnd(t, soft.Config{}, rdma.Config{})
	conn, err := await.Dial(t.Context(), a.Connections, b.listen(t, rdma.ListenConfig{}), rdma.DialConfig{})
	require.NoError(t, err)
	remote, err := mmap.FromKey(a.dev, 0x10000, 64, 0x12345678, mmap.RemoteWrite)
	require.NoError(t, err)
	require.Error(t, await.Write(t.Context(), conn, bufinv.Source(a.memory, 0, 64), bufinv.Target(remote, 0, 64)))
	require.NoError(t, remote.Close())
	a.close()
	b.close()
	for _, e := range []*end{a, b} {
		c := only(t, e.capture.Bytes(), false)
		assert.Equal(t, "refused by "+c.Ends[1].Addr.String()+": NAK, remote access error", c.Outcome)
		assert.Contains(t, c.Diagnosis, "remote key is wrong")
		assert.Equal(t, map[string]int64{"remote access error": 1}, c.Sent[1].NAKs)
	}
}

// counted reports whether one of the device's counters is more than n.
func counted(e *end, name string, n uint64) bool {
	counters, _ := e.dev.Counters()
	return slices.ContainsFunc(counters, func(c verbs.Counter) bool { return c.Name == name && c.Value > n })
}

// A message comes again and again to a receiver without a receive.
func TestReceiverNotReady(t *testing.T) {
	a, b := newEnd(t, soft.Config{}, rdma.Config{AckTimeout: patient}), newEnd(t, soft.Config{}, rdma.Config{})
	conn, err := await.Dial(t.Context(), a.Connections, b.listen(t, rdma.ListenConfig{}), rdma.DialConfig{})
	require.NoError(t, err)
	// One of many round trips takes less than a sender waits for the receiver, on a busy machine too.
	remote := a.remote(t, b)
	for range 100 {
		require.NoError(t, await.Write(t.Context(), conn, bufinv.Source(a.memory, 0, 8), bufinv.Target(remote, 0, 8)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan error, 1)
	go func() { sent <- await.Send(ctx, conn, bufinv.Source(a.memory, 0, 64)) }()
	assert.Eventually(t, func() bool { return counted(a, "rcvd_rnr_err", 5) }, 5*time.Minute, time.Millisecond)
	cancel()
	require.Error(t, <-sent)
	a.close()
	b.close()
	for _, e := range []*end{a, b} {
		c := only(t, e.capture.Bytes(), false)
		t.Logf("%+v", c)
		assert.Contains(t, c.Diagnosis, "RNR")
		assert.Positive(t, c.Sent[1].RNRNAKs)
		assert.Positive(t, c.Sent[0].Repeats.RNR)
		assert.Zero(t, c.Sent[0].Repeats.Duplicated)
	}
}

// The peer vanishes.
func TestPeerVanishes(t *testing.T) {
	// The peer answers the first write, even if it has no processor for some time.
	a := newEnd(t, soft.Config{}, rdma.Config{AckTimeout: 128 * time.Millisecond})
	b := newEnd(t, soft.Config{}, rdma.Config{})
	conn, err := await.Dial(t.Context(), a.Connections, b.listen(t, rdma.ListenConfig{}), rdma.DialConfig{})
	require.NoError(t, err)
	remote := a.remote(t, b)
	require.NoError(t, await.Write(t.Context(), conn, bufinv.Source(a.memory, 0, 64), bufinv.Target(remote, 0, 64)))
	require.NoError(t, b.dev.SetFaults(soft.Faults{Loss: 1}))
	require.ErrorIs(t, await.Write(t.Context(), conn, bufinv.Source(a.memory, 0, 64), bufinv.Target(remote, 0, 64)), rdma.ErrRetryExceeded)
	a.close()
	c := only(t, a.capture.Bytes(), false)
	t.Logf("%+v", c)
	assert.Equal(t, "no answer from "+c.Ends[1].Addr.String(), c.Outcome)
	assert.Contains(t, c.Diagnosis, "got no answer any more")
	assert.Positive(t, c.Sent[0].Repeats.TimeOut)
}

// Connections that are not made.
func TestNoConnection(t *testing.T) {
	a, b := newEnd(t, soft.Config{}, rdma.Config{MaxConnections: 3}), newEnd(t, soft.Config{}, rdma.Config{})
	addr := b.listen(t, rdma.ListenConfig{OnRequest: func(q *rdma.ConnectRequest) { _ = q.Reject(nil) }})
	_, err := await.Dial(t.Context(), a.Connections, addr, rdma.DialConfig{})
	require.ErrorIs(t, err, rdma.ErrRejected)
	_, err = await.Dial(t.Context(), a.Connections, b.listener.Addr().Addr().String()+":1", rdma.DialConfig{Once: true, UDPPort: 4791})
	require.ErrorIs(t, err, rdma.ErrNotListening)
	require.NoError(t, b.dev.SetFaults(soft.Faults{Loss: 1}))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = await.Dial(ctx, a.Connections, addr, rdma.DialConfig{})
	require.Error(t, err)
	a.close()
	r, err := capture.Analyse(bytes.NewReader(a.capture.Bytes()))
	require.NoError(t, err)
	require.Len(t, r.Connections, 3)
	for i, want := range []string{"by its application", "no program listens on port 1 of", "no answer was recorded"} {
		assert.Contains(t, r.Connections[i].Diagnosis, want, "%+v", r.Connections[i])
	}
	assert.EqualValues(t, 3, r.Messages["REJ"], "the third is from the client, which gave up")
}
