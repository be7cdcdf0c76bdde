package rdma_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

func openDevice(t *testing.T) verbs.Device {
	dev := must(soft.Open(soft.Config{}))
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func TestDefaults(t *testing.T) {
	dev := openDevice(t)
	c := must(rdma.New(dev, rdma.Config{}))
	cfg := c.Config()
	assert.Equal(t, "rdma", cfg.Name)
	assert.Equal(t, dev.DefaultPD(), cfg.PD)
	assert.Equal(t, 1, cfg.Path.Port)
	assert.Equal(t, 0, *cfg.Path.GIDIndex)
	assert.Equal(t, rdma.Forever, cfg.RNRRetry)
	assert.Equal(t, 4096*time.Nanosecond<<16, cfg.AckTimeout)
	assert.Equal(t, 1, cfg.MaxConnections)
	assert.Equal(t, 4, cfg.MaxSGE)
	assert.True(t, c.GID().GID.Addr().Is4())
	assert.Same(t, dev, c.Device())
	assert.Equal(t, dev.DefaultPD(), c.PD())

	*cfg.Path.GIDIndex = 99
	assert.Equal(t, 0, *c.Config().Path.GIDIndex, "what Config returns is a copy")

	must(c.Pool(10, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	must(c.Pool(5, func(*rdma.Task) {}, func(*rdma.Task, error) {}))
	must(c.ReceivePool(7, func(*rdma.ReceiveTask) {}, func(*rdma.ReceiveTask, error) {}))
	assert.Equal(t, 15, c.Config().SendQueueSize, "follows from the pools")
}

func TestRounding(t *testing.T) {
	dev := openDevice(t)
	for _, c := range []struct{ ack, want time.Duration }{
		{1, 8192},
		{8192, 8192},
		{8193, 16384},
		{time.Second, 4096 << 18},
		{4096 << 31, 4096 << 31},
		{rdma.Forever, rdma.Forever},
	} {
		cfg := must(rdma.New(dev, rdma.Config{AckTimeout: c.ack})).Config()
		assert.Equal(t, c.want, cfg.AckTimeout, "%v", c.ack)
	}
}

func TestBadConfig(t *testing.T) {
	dev := openDevice(t)
	other := openDevice(t)
	for _, c := range []struct {
		name string
		cfg  rdma.Config
		want error
		text string
	}{
		{"domain of another device", rdma.Config{PD: other.DefaultPD()}, rdma.ErrInvalid, "Config.PD"},
		{"port", rdma.Config{Path: rdma.PathConfig{Port: 2}}, rdma.ErrRange, "Config.Path.Port"},
		{"GID index", rdma.Config{Path: rdma.PathConfig{GIDIndex: new(77)}}, rdma.ErrGID, "use one of 0 (127."},
		{"negative GID index", rdma.Config{Path: rdma.PathConfig{GIDIndex: new(-1)}}, rdma.ErrGID, "RoCEv2"},
		{"MTU", rdma.Config{Path: rdma.PathConfig{MTU: 1500}}, rdma.ErrRange, "256, 512"},
		{"SL", rdma.Config{Path: rdma.PathConfig{SL: 8}}, rdma.ErrRange, "Config.Path.SL"},
		{"RNRRetry", rdma.Config{RNRRetry: 8}, rdma.ErrRange, "Config.RNRRetry"},
		{"SilenceTimeout", rdma.Config{SilenceTimeout: -time.Second}, rdma.ErrRange, "Config.SilenceTimeout"},
		{"AckTimeout", rdma.Config{AckTimeout: math.MaxInt64}, rdma.ErrRange, "Config.AckTimeout"},
		{"MaxConnections", rdma.Config{MaxConnections: 1<<16 + 1}, rdma.ErrRange, "Config.MaxConnections"},
		{"SendQueueSize", rdma.Config{SendQueueSize: -1}, rdma.ErrRange, "Config.SendQueueSize"},
		{"MaxSGE", rdma.Config{MaxSGE: 1 << 20}, rdma.ErrRange, "Config.MaxSGE"},
		{"transport service", rdma.Config{Transport: verbs.UD}, rdma.ErrInvalid, "NewDatagrams"},
		{"ConnectTimeout", rdma.Config{ConnectTimeout: rdma.None}, rdma.ErrRange, "Config.ConnectTimeout is None"},
		{"Keepalive", rdma.Config{Keepalive: rdma.Forever}, rdma.ErrRange, "Config.Keepalive is Forever"},
		{"CloseTimeout", rdma.Config{CloseTimeout: -5}, rdma.ErrRange, "Config.CloseTimeout"},
		{"AckTimeout None", rdma.Config{AckTimeout: rdma.None}, rdma.ErrRange, "Config.AckTimeout is None"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := rdma.New(dev, c.cfg)
			require.ErrorIs(t, err, c.want)
			assert.ErrorContains(t, err, c.text)
		})
	}
	_, err := rdma.New(nil, rdma.Config{})
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = rdma.NewDatagrams(dev, rdma.DatagramsConfig{PKeyIndex: 1 << 16})
	require.ErrorIs(t, err, rdma.ErrRange)
	assert.ErrorContains(t, err, "DatagramsConfig.PKeyIndex")
	for _, timeout := range []time.Duration{rdma.None, -time.Second} {
		c := must(rdma.New(dev, rdma.Config{Engine: newEngine(t)}))
		require.NoError(t, c.Start())
		_, err = c.Dial("127.0.0.1:1", rdma.DialConfig{Timeout: timeout})
		require.ErrorIs(t, err, rdma.ErrRange)
		assert.ErrorContains(t, err, "DialConfig.Timeout")
		require.NoError(t, c.Close())
	}
	_, err = rdma.NewDatagrams(dev, rdma.DatagramsConfig{Transport: verbs.UC})
	require.ErrorIs(t, err, rdma.ErrInvalid)
}

// The reads under way at a time are those that both devices allow, and at most 16, by descriptor and
// by address.
func TestMaxReadAtomic(t *testing.T) {
	for _, c := range []struct{ a, b, both int }{{100, 100, 16}, {1, 100, 1}, {5, 3, 3}, {16, 100, 16}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			open := func(limit int) verbs.Device {
				dev := openFaulty(t)
				dev.Set(func(h *faultydevice.Hooks) {
					h.Query = func(a *verbs.DeviceAttr) error {
						a.MaxQPReadAtomic, a.MaxInitReadAtomic = limit, limit
						return nil
					}
				})
				return dev
			}
			cfg := rdma.Config{Permissions: everything}
			r := newRigOn(t, open(c.a), open(c.b), cfg, cfg)
			var reads outcome[*rdma.Task]
			pool := must(r.a.ctx.Pool(40, reads.ok, reads.bad))
			r.connect(1)
			for i := range 40 {
				task := must(pool.Read(r.a.conns[0], r.a.bufs.Source(r.a.peer, i, 1), r.a.bufs.Target(r.a.mem, i, 1)))
				require.NoError(t, task.TrySubmit())
			}
			r.until("all have been read", func() bool { return reads.count() == 40 })
			require.Empty(t, reads.errs)
			for _, task := range reads.done {
				require.NoError(t, task.Free())
			}
			assert.Equal(t, []int{c.both, c.both}, []int{r.a.conns[0].MaxReadAtomic(), r.b.conns[0].MaxReadAtomic()})

			cs := newDialRig(t, open(c.a), open(c.b))
			server, client := cs.add(cfg), cs.add(cfg)
			cs.start(server, client)
			_, addr := cs.listen(server, rdma.ListenConfig{})
			conn := must(client.Dial(addr, rdma.DialConfig{}))
			cs.until("connected", func() bool { return len(server.ready) == 1 && conn.State() == rdma.Ready })
			assert.Equal(t, []int{c.both, c.both}, []int{server.ready[0].MaxReadAtomic(), conn.MaxReadAtomic()})
		})
	}
}

func TestEveryConfigWorks(t *testing.T) {
	for _, c := range []rdma.Config{
		{Path: rdma.PathConfig{MTU: 256}, MaxSGE: 1},
		{Path: rdma.PathConfig{SL: 3, TrafficClass: 0x20, MTU: 1024}},
		{AckTimeout: rdma.Forever, RNRRetry: rdma.None},
		{Permissions: mmap.RemoteRead},
		{SendQueueSize: 1, MaxConnections: 100},
	} {
		r := newRig(t, c, rdma.Config{})
		var writes outcome[*rdma.Task]
		pool := must(r.a.ctx.Pool(2, writes.ok, writes.bad))
		r.connect(1)
		task := must(pool.Write(r.a.conns[0], r.a.bufs.Source(r.a.mem, 0, 5000), r.a.bufs.Target(r.a.peer, 0, 5000)))
		require.NoError(t, task.TrySubmit())
		r.until("it is written", func() bool { return writes.count() == 1 })
		require.Empty(t, writes.errs)
		require.NoError(t, task.Free())
		want := c.Path.MTU
		if want == 0 {
			want = 4096
		}
		assert.Equal(t, want, r.a.conns[0].MTU())
		assert.Equal(t, want, r.b.conns[0].MTU())
	}
}

// What a context reports goes to the log of its engine, with the context's name.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	engine := pe.New(pe.Config{Log: zerolog.New(&log)})
	c := must(rdma.New(openDevice(t), rdma.Config{Engine: engine, Name: "talkative"}))
	require.NoError(t, c.Start())
	conn, _ := must2(c.Export())
	require.NoError(t, conn.Close())
	require.NoError(t, engine.Close())
	assert.Regexp(t, `"context":"talkative","connection":.*,"state":"Closed"`, log.String())
}

func TestPoolMisuse(t *testing.T) {
	c := must(rdma.New(openDevice(t), rdma.Config{}))
	_, err := c.Pool(1, nil, nil)
	require.ErrorIs(t, err, rdma.ErrInvalid)
	_, err = c.Pool(0, func(*rdma.Task) {}, func(*rdma.Task, error) {})
	require.Error(t, err)
}

func TestCapabilities(t *testing.T) {
	dev := openDevice(t)
	caps := must(rdma.QueryCapabilities(dev, verbs.RC))
	assert.True(t, caps.Transports.Has(verbs.RC))
	assert.True(t, caps.Atomics)
	assert.EqualValues(t, 4096, caps.MaxMTU)
	assert.Positive(t, caps.MaxConnections)
	for op := rdma.OpReceive; op <= rdma.OpAtomicWrite; op++ {
		assert.NoError(t, rdma.Supports(dev, op), "%v", op)
	}
	assert.ErrorIs(t, rdma.Supports(dev, rdma.Operation(99)), rdma.ErrNotSupported)
	assert.ErrorIs(t, rdma.Supports(nil, rdma.OpSend), rdma.ErrInvalid)
	plain := rdma.Capabilities{Transports: verbs.TransportSet(verbs.RC), Writes: true}
	assert.False(t, plain.Supports(rdma.OpReceive))
	assert.False(t, plain.Supports(rdma.OpRead))
	assert.False(t, plain.Supports(rdma.OpCompareSwap))
	assert.False(t, plain.Supports(rdma.OpSyncEventGet))
	assert.True(t, plain.Supports(rdma.OpSyncEventSet))
	assert.False(t, plain.Supports(rdma.OpSyncEventAdd))
	plain.Reads, plain.MaxReadAtomic = true, 1
	assert.True(t, plain.Supports(rdma.OpSyncEventGet))
	assert.False(t, plain.Supports(rdma.OpSyncEventAdd), "it has no atomics")
	assert.True(t, plain.Supports(rdma.OpWrite))
	assert.False(t, plain.Supports(rdma.OpAtomicWrite))
	plain.AtomicWrites = true
	assert.True(t, plain.Supports(rdma.OpAtomicWrite))
	unreliable := must(rdma.QueryCapabilities(dev, verbs.UC))
	assert.False(t, unreliable.Supports(rdma.OpAtomicWrite))

	datagrams := must(rdma.QueryCapabilities(dev, verbs.UD))
	assert.EqualValues(t, 4096, datagrams.MaxSend)
	for op := rdma.OpReceive; op <= rdma.OpAtomicWrite; op++ {
		assert.Equal(t, op <= rdma.OpSendImm, datagrams.Supports(op), "%v", op)
	}
	none := must(rdma.QueryCapabilities(dev, 99))
	assert.False(t, none.Supports(rdma.OpSend))
}

func TestTaskErrorsNameTheirStatus(t *testing.T) {
	for status, want := range map[verbs.Status]error{
		verbs.StatusFlushed:              rdma.ErrFlushed,
		verbs.StatusLocalLengthError:     rdma.ErrLocalLength,
		verbs.StatusLocalProtectionError: rdma.ErrLocalProtection,
		verbs.StatusRemoteInvalidRequest: rdma.ErrRemoteInvalid,
		verbs.StatusRemoteAccessError:    rdma.ErrRemoteAccess,
		verbs.StatusRemoteOperationError: rdma.ErrRemoteOperation,
		verbs.StatusRetryExceeded:        rdma.ErrRetryExceeded,
		verbs.StatusRNRRetryExceeded:     rdma.ErrRNRRetryExceeded,
		verbs.StatusGeneralError:         rdma.ErrTaskFailed,
		verbs.Status(1234):               rdma.ErrTaskFailed,
	} {
		err := &rdma.TaskError{Op: rdma.OpRead, Status: status, VendorError: 0x51}
		assert.ErrorIs(t, err, want)
		assert.ErrorContains(t, err, "rdma: read: "+status.String()+" (vendor code 0x51)")
	}
	assert.Equal(t, "operation -1", rdma.Operation(-1).String())
	assert.Equal(t, "ConnectionState(9)", rdma.ConnectionState(9).String())
	assert.Equal(t, "receive opcode 3", rdma.ReceiveOpcode(3).String())
}
