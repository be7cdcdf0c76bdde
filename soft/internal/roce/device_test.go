package roce

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/faults"
	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

func addresses(s string) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(s), 0)}
}

var variants = []struct {
	name string
	cfg  Config
}{
	{"IPv4", Config{Addresses: addresses("127.0.0.1"), DisableLocal: true}},
	{"IPv6", Config{Addresses: addresses("::1"), DisableLocal: true}},
	{"no offloads", Config{DisableSegmentation: true, DisableCoalescing: true, DisableBatch: true, DisableLocal: true}},
	{"no coalescing", Config{DisableCoalescing: true, DisableLocal: true}},
	{"shared memory", Config{}},
	{"shared memory, IPv6", Config{Addresses: addresses("::1")}},
}

func fill(b []byte, seed uint64) {
	key := [32]byte{}
	binary.NativeEndian.PutUint64(key[:], seed)
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
}

// TestOperations runs every operation against a responder that is not polled.
func TestOperations(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			const half = 256 << 10
			x, y := openPair(t, v.cfg, v.cfg, 2*half)
			if !v.cfg.DisableLocal {
				awaitSharedMemory(x, y)
			}
			for _, n := range []int{0, 1, 255, 4096, 4097, 100_001, half} {
				fill(x.mem[:n], uint64(n))
				clear(y.mem)
				x.post(verbs.SendWR{ID: 1, Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
				assert.Equal(t, verbs.WC{ID: 1, Opcode: verbs.WCWrite, Bytes: uint32(n), QPN: x.qp.Num()}, x.wait(1)[0])

				x.post(verbs.SendWR{ID: 2, Op: verbs.OpRead, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(half, n/3), x.sge(half+n/3, n-n/3)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
				assert.Equal(t, verbs.WC{ID: 2, Opcode: verbs.WCRead, Bytes: uint32(n), QPN: x.qp.Num()}, x.wait(1)[0])
				assert.True(t, bytes.Equal(x.mem[:n], x.mem[half:half+n]), "%d bytes came back changed", n)

				_, err := y.qp.PostRecv([]verbs.RecvWR{{ID: 3, SGL: []verbs.SGE{y.sge(half, half)}}})
				require.NoError(t, err)
				x.post(verbs.SendWR{ID: 4, Op: verbs.OpSendImm, Imm: 0xcafe, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, n/2), x.sge(n/2, n-n/2)}})
				assert.Equal(t, verbs.WC{ID: 3, Opcode: verbs.WCRecv, Bytes: uint32(n), HasImm: true, Imm: 0xcafe, QPN: y.qp.Num()}, y.wait(1)[0])
				assert.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
				assert.True(t, bytes.Equal(x.mem[:n], y.mem[half:half+n]), "%d bytes arrived changed", n)
			}
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&y.mem[0])), 40) // atomics are real ones
			x.post(
				verbs.SendWR{ID: 5, Op: verbs.OpFetchAdd, CompareAdd: 2, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()},
				verbs.SendWR{ID: 6, Op: verbs.OpCompareSwap, CompareAdd: 42, Swap: 7, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(8, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()},
				verbs.SendWR{ID: 7, Op: verbs.OpCompareSwap, CompareAdd: 42, Swap: 9, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(16, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()},
			)
			x.wait(3)
			assert.Equal(t, []uint64{7, 7}, []uint64{counter(t, x.dev, "rdma_sends"), counter(t, y.dev, "rdma_recvs")}, "one of each size")
			assert.Equal(t, []uint64{40, 42, 7, 7}, []uint64{
				binary.NativeEndian.Uint64(x.mem), binary.NativeEndian.Uint64(x.mem[8:]), binary.NativeEndian.Uint64(x.mem[16:]),
				atomic.LoadUint64((*uint64)(unsafe.Pointer(&y.mem[0])))})
		})
	}
}

// A program that polls the word of atomic writes sees each value whole, and after the writes
// before it.
func TestAtomicWrite(t *testing.T) {
	for _, udp := range []bool{true, false} {
		t.Run(fmt.Sprintf("UDP %v", udp), func(t *testing.T) {
			cfg := Config{DisableLocal: udp}
			x, y := openAdaptive(t, cfg, 4096), openAdaptive(t, cfg, 4096)
			x.connect(y)
			y.connect(x)
			if !udp {
				awaitSharedMemory(x, y)
			}
			testAtomicWrite(t, x, y)
		})
	}
}

func testAtomicWrite(t *testing.T, x, y *side) {
	const rounds, each = 255, 0x0101010101010101
	data, word := (*uint64)(unsafe.Pointer(&y.mem[8])), (*uint64)(unsafe.Pointer(&y.mem[0]))
	var over atomic.Bool
	var wrong []uint64
	var reader sync.WaitGroup
	reader.Go(func() {
		for last := uint64(0); last != rounds*each && !over.Load(); runtime.Gosched() {
			v := atomic.LoadUint64(word)
			if v%each != 0 || v < last || atomic.LoadUint64(data) < v {
				wrong = append(wrong, v)
			}
			last = v
		}
	})
	defer reader.Wait()
	defer over.Store(true)
	for i := range uint64(rounds) {
		binary.NativeEndian.PutUint64(x.mem, (i+1)*each)
		x.post(
			verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr() + 8, RKey: y.mr.RKey()},
			verbs.SendWR{ID: i, Op: verbs.OpAtomicWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 3), x.sge(3, 5)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()},
		)
		require.Equal(t, []verbs.WC{{ID: i, Opcode: verbs.WCAtomicWrite, Bytes: 8, QPN: x.qp.Num()}}, x.wait(1))
	}
	reader.Wait() // the last value has come
	require.Empty(t, wrong, "values that were torn, went back, or came before their data")
}

func TestInline(t *testing.T) { overEachPath(t, 4096, testInline) }

func testInline(t *testing.T, x, y *side) {
	data := []byte("not registered")
	sge := verbs.SGE{Addr: addressOfBytes(data), Length: uint32(len(data))}
	x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled | verbs.FlagInline, SGL: []verbs.SGE{sge}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
	copy(data, "xxxxxxxxxxxxxx")
	x.wait(1)
	assert.Equal(t, "not registered", string(y.mem[:14]))
}

// TestEventMode sleeps for every completion, with a peer that never polls.
func TestEventMode(t *testing.T) { overEachPath(t, 4096, testEventMode) }

func testEventMode(t *testing.T, x, y *side) {
	wake := make(chan struct{}, 1)
	x.cq.OnCompletion(func() { wake <- struct{}{} })
	for i := range 200 {
		armed, err := x.cq.Arm(false)
		require.NoError(t, err)
		require.True(t, armed)
		x.post(verbs.SendWR{ID: uint64(i), Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
		select {
		case <-wake:
		case <-time.After(5 * time.Minute):
			t.Fatal("no completion was notified")
		}
		n, err := x.cq.Poll(x.wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
}

// TestFaults mixes operations over a path with every fault at once, through real
// sockets; the transport's own tests do the same in virtual time and at length.
func TestFaults(t *testing.T) {
	// With 10 % of loss eight attempts in a row fail once in some 100,000 operations.
	f := faults.Faults{Loss: 0.05, Duplicate: 0.05, Reorder: 0.1, Corrupt: 0.01, Seed: 1}
	const slots, slot = 16, 9000
	x, y := openPair(t, Config{Faults: f}, Config{Faults: f}, slots*slot)
	random := rand.New(rand.NewPCG(2, 3))
	for round := range 100 {
		fill(x.mem, uint64(round))
		var wrs []verbs.SendWR
		for i := range slots {
			n := random.IntN(slot)
			op := verbs.OpWrite
			if i%4 == 3 {
				op = verbs.OpRead // reads back what an earlier one wrote
				n, i = 8, i-1
			}
			wrs = append(wrs, verbs.SendWR{ID: uint64(len(wrs)), Op: op, Flags: verbs.FlagSignaled,
				SGL: []verbs.SGE{x.sge(i*slot, n)}, RemoteAddr: y.mr.Addr() + uint64(i*slot), RKey: y.mr.RKey()})
		}
		x.post(wrs...)
		for i, wc := range x.wait(slots) {
			require.Equal(t, verbs.StatusSuccess, wc.Status)
			require.Equal(t, uint64(i), wc.ID)
		}
		for _, wr := range wrs {
			off := int(wr.RemoteAddr - y.mr.Addr())
			n := int(wr.SGL[0].Length)
			require.True(t, bytes.Equal(x.mem[off:off+n], y.mem[off:off+n]), "round %d", round)
		}
	}
}

// TestWrongPeer sends garbage, and packets of a live connection from another address, as a
// third party could.
func TestWrongPeer(t *testing.T) {
	x, y := openPair(t, Config{}, Config{}, 4096)
	third, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 77)})
	require.NoError(t, err)
	defer third.Close()
	gids := must(y.dev.GIDs(1))
	target := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), gids[0].UDPPort))

	p := wire.Packet{Opcode: wire.RCWriteOnly, MigReq: true, PKey: 0xffff, DestQP: y.qp.Num(), PSN: 0xfffff0, AckReq: true,
		RETH: wire.RETH{VA: y.mr.Addr(), RKey: y.mr.RKey(), Length: 8}}
	b := make([]byte, p.Opcode.HeaderLen()+8+wire.ICRCLen)
	p.PutHeaders(b)
	copy(b[p.Opcode.HeaderLen():], "intruder")
	flow := wire.NewFlow(third.LocalAddr().(*net.UDPAddr).AddrPort(), target.AddrPort())
	crc := flow.ICRCStart(0, len(b), b[:p.Opcode.HeaderLen()])
	crc = wire.ICRCUpdate(crc, b[p.Opcode.HeaderLen():len(b)-wire.ICRCLen])
	wire.PutICRC(b[len(b)-wire.ICRCLen:], wire.ICRCFinish(crc))

	sent := [][]byte{b, {}, {1}, make([]byte, 12), make([]byte, 64), bytes.Repeat([]byte{0xff}, 4096)}
	random := rand.New(rand.NewPCG(4, 5))
	for range 200 {
		g := make([]byte, random.IntN(200))
		fill(g, random.Uint64())
		sent = append(sent, g)
	}
	for _, g := range sent {
		_, err := third.WriteTo(g, target)
		require.NoError(t, err)
	}
	copy(x.mem, "the peer")
	x.post(verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr() + 8, RKey: y.mr.RKey()})
	require.Equal(t, verbs.StatusSuccess, x.wait(1)[0].Status)
	assert.Equal(t, make([]byte, 8), y.mem[:8], "the third party wrote to memory")
	assert.Equal(t, "the peer", string(y.mem[8:16]))
	// The peer's write may have come through shared memory, and overtaken the others.
	var refused uint64
	for limit := time.Now().Add(5 * time.Minute); refused < uint64(len(sent)) && time.Now().Before(limit); {
		refused = 0
		for _, c := range must(y.dev.Counters()) {
			if c.Name == "rx_wrong_peer" || c.Name == "rx_malformed" {
				refused += c.Value
			}
		}
	}
	assert.Equal(t, uint64(len(sent)), refused)
}

// TestErrors checks the status at the requester, the event at the responder and
// that its memory is untouched.
func TestErrors(t *testing.T) {
	other := func(y *side) verbs.MR {
		pd := must(y.dev.AllocPD())
		mr := must(pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
		y.t.Cleanup(func() { _ = mr.Close(); _ = pd.Close() })
		return mr
	}
	for _, c := range []struct {
		name   string
		wr     func(x, y *side) verbs.SendWR
		status verbs.Status
		event  verbs.EventType
	}{
		{"wrong rkey", func(x, y *side) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey() + 1}
		}, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
		{"out of bounds", func(x, y *side) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: y.mr.Addr() + 4090, RKey: y.mr.RKey()}
		}, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
		{"read out of bounds", func(x, y *side) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpRead, RemoteAddr: y.mr.Addr() - 1, RKey: y.mr.RKey()}
		}, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
		{"other protection domain", func(x, y *side) verbs.SendWR {
			mr := other(y)
			return verbs.SendWR{Op: verbs.OpWrite, RemoteAddr: mr.Addr(), RKey: mr.RKey()}
		}, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
		{"misaligned atomic", func(x, y *side) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpFetchAdd, RemoteAddr: y.mr.Addr() + 4, RKey: y.mr.RKey()}
		}, verbs.StatusRemoteInvalidRequest, verbs.EventQPRequestError},
		{"misaligned atomic write", func(x, y *side) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpAtomicWrite, RemoteAddr: y.mr.Addr() + 4, RKey: y.mr.RKey()}
		}, verbs.StatusRemoteInvalidRequest, verbs.EventQPRequestError},
		{"atomic write out of bounds", func(x, y *side) verbs.SendWR {
			return verbs.SendWR{Op: verbs.OpAtomicWrite, RemoteAddr: y.mr.Addr() + 4096, RKey: y.mr.RKey()}
		}, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
	} {
		test := func(t *testing.T, x, y *side) {
			events := make(chan verbs.Event, 4)
			defer y.dev.SubscribeEvents(func(e verbs.Event) { events <- e })()
			copy(x.mem, "malice!!")
			wr := c.wr(x, y)
			wr.ID, wr.Flags, wr.SGL = 9, verbs.FlagSignaled, []verbs.SGE{x.sge(0, 8)}
			x.post(wr, wr)
			wcs := x.wait(2)
			opcode := map[verbs.Opcode]verbs.WCOpcode{
				verbs.OpSend: verbs.WCSend, verbs.OpWrite: verbs.WCWrite, verbs.OpRead: verbs.WCRead,
				verbs.OpCompareSwap: verbs.WCCompareSwap, verbs.OpFetchAdd: verbs.WCFetchAdd, verbs.OpAtomicWrite: verbs.WCAtomicWrite,
			}[wr.Op]
			assert.Equal(t, verbs.WC{ID: 9, Status: c.status, Opcode: opcode, QPN: x.qp.Num()}, wcs[0])
			assert.Equal(t, verbs.WC{ID: 9, Status: verbs.StatusFlushed, Opcode: opcode, QPN: x.qp.Num()}, wcs[1])
			assert.Equal(t, make([]byte, 4096), y.mem)
			select {
			case e := <-events:
				assert.Equal(t, verbs.Event{Type: c.event, QPN: y.qp.Num()}, e)
			case <-time.After(5 * time.Minute):
				t.Fatal("the responder reported no event")
			}
		}
		t.Run(c.name, func(t *testing.T) { overEachPath(t, 4096, test) })
	}
}

func TestPeerGone(t *testing.T) { overEachPath(t, 4096, testPeerGone) }

func testPeerGone(t *testing.T, x, y *side) {
	require.NoError(t, y.qp.Close())
	x.post(verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()})
	assert.Equal(t, verbs.StatusRetryExceeded, x.wait(1)[0].Status)
}

func TestInUse(t *testing.T) {
	d := must(Open(Config{Name: "soft-test", Addresses: addresses("127.0.0.1")}))
	cq := must(d.CreateCQ(verbs.CQInit{Capacity: 16}))
	pd := must(d.AllocPD())
	mr := must(pd.RegMR(make([]byte, 10), 0))
	qp := must(pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}))
	assert.ErrorIs(t, d.Close(), verbs.ErrInUse)
	assert.ErrorIs(t, pd.Close(), verbs.ErrInUse)
	assert.ErrorIs(t, cq.Close(), verbs.ErrInUse)
	assert.ErrorIs(t, d.DefaultPD().Close(), verbs.ErrInvalid)
	require.NoError(t, qp.Close())
	require.NoError(t, mr.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, cq.Close())
	require.NoError(t, d.Close())
	_, err := d.AllocPD()
	assert.ErrorIs(t, err, verbs.ErrClosed)
}

func TestCompletionQueueOverrun(t *testing.T) { overEachPath(t, 4096, testCompletionQueueOverrun) }

func testCompletionQueueOverrun(t *testing.T, x, y *side) {
	small := must(x.dev.CreateCQ(verbs.CQInit{Capacity: 2}))
	qp := must(x.dev.DefaultPD().CreateQP(verbs.QPInit{SendCQ: small, RecvCQ: small, MaxSendWR: 8, MaxSendSGE: 1, MaxRecvWR: 1}))
	original := x.qp
	x.qp = qp
	require.NoError(t, y.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.QPAttrState))
	x.connect(y)
	y.connect(x)
	wr := verbs.SendWR{Op: verbs.OpWrite, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{x.sge(0, 8)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
	x.post(wr, wr, wr, wr)
	require.Eventually(t, func() bool {
		_, err := small.Poll(nil)
		return assert.ObjectsAreEqual(err != nil, true)
	}, 5*time.Minute, time.Millisecond)
	_, err := small.Poll(x.wcs)
	assert.ErrorIs(t, err, verbs.ErrOverrun)
	assert.Equal(t, verbs.QPError, must(qp.Query()).State)
	assert.Equal(t, verbs.QPReadyToSend, must(original.Query()).State, "a queue pair on another queue goes on")
	require.NoError(t, qp.Close())
	require.NoError(t, small.Close())
	x.qp = original
}

// hidden returns a field that another package does not export. The field exists for the product,
// and tests wait for what it shows.
func hidden(of any, field string) reflect.Value { return reflect.ValueOf(of).Elem().FieldByName(field) }

func counter(t testing.TB, d *Device, name string) uint64 {
	t.Helper()
	for _, c := range must(d.Counters()) {
		if c.Name == name {
			return c.Value
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}

// TestTentativeAddress opens a device one of whose addresses cannot be bound.
func TestTentativeAddress(t *testing.T) {
	here, gone := addresses("127.0.0.1")[0], addresses("192.0.2.99")[0]
	d := must(Open(Config{Name: "soft-test", Addresses: []netip.AddrPort{gone, here}}))
	gids := must(d.GIDs(1))
	require.Len(t, gids, 1)
	assert.Equal(t, here.Addr(), gids[0].GID.Addr())
	require.NoError(t, d.Close())
	_, err := Open(Config{Name: "soft-test", Addresses: []netip.AddrPort{gone}})
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

// Queue pairs accept messages of the longest length.
func TestLongestMessage(t *testing.T) {
	s := openSide(t, Config{}, 8)
	require.Equal(t, uint32(1<<31), must(s.dev.Query()).MaxMessage)
}
