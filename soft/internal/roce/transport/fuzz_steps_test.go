package transport

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

// A fuzzing input is two bytes of options, and then steps: a byte that says what to do, and
// as many for how as that takes.
const (
	stepForge    = iota // a packet made of choices
	stepRaw             // a packet as it is on the wire
	stepPost            // a request
	stepReceive         // a receive
	stepCarry           // packets both ways
	stepTransmit        // packets onto the way
	stepArrive          // one packet off the way
	stepTime            // time passes
	stepModify          // the state of a queue pair
	stepRegion          // a region goes, or comes
	stepWindow          // a window goes, or comes
	stepSet             // what the device sets, or knows
	stepWatch           // a region
	stepClose           // a queue pair, and open another
	stepBind            // a window
	steps
)

// fuzzInput is what is left of an input; behind its end are zeros.
type fuzzInput []byte

func (b *fuzzInput) next() byte {
	if len(*b) == 0 {
		return 0
	}
	x := (*b)[0]
	*b = (*b)[1:]
	return x
}

func (b *fuzzInput) pick(n int) int { return int(b.next()) % n }

func (b *fuzzInput) take(n int) []byte {
	n = min(n, len(*b))
	x := (*b)[:n]
	*b = (*b)[n:]
	return x
}

// chosen are the options that two bytes stand for.
func chosen(kind verbs.QPType, a, b byte) fuzzOptions {
	o := options{
		kind: kind, recvDepth: 8, depth: 16, rnrTimer: 1,
		adaptive: a&1 != 0, controlled: a&2 != 0, signalAll: a&16 != 0,
		initReads: [...]int{2, 1, 16, -1}[b>>2&3], destReads: [...]int{2, 0, 16, -1}[b>>4&3],
		mtu:      [...]verbs.MTU{256, 512, 1024, 4096}[b&3],
		rnrRetry: [...]uint8{7, 1}[a>>5&1], retries: [...]uint8{7, 1}[a>>5&1],
		window: [...]int{1 << 20, 4096}[a>>6&1], timeout: [...]uint8{8, 255}[a>>7],
	}
	o.access = [...]verbs.Access{peerAccess, verbs.AccessRemoteRead, verbs.AccessRemoteWrite, 0}[b>>6]
	return fuzzOptions{options: o.defaults(), shared: a&4 != 0, guarded: a&8 != 0}
}

func runFuzz(w *fuzzWorld, in fuzzInput) {
	for range fuzzSteps {
		if len(in) == 0 {
			break
		}
		w.step(&in)
	}
	w.finish()
}

func (w *fuzzWorld) step(in *fuzzInput) {
	what, who := in.pick(steps), in.next()
	q := w.all()[who%3]
	how := who / 3
	switch what {
	case stepForge:
		w.forge(q, how, in)
	case stepRaw:
		w.raw(q, how, in)
	case stepPost:
		q.post(how, in)
	case stepReceive:
		q.postReceive(in)
	case stepCarry:
		w.carry(1 + int(how)%8)
	case stepTransmit:
		q.transmit(int(how))
	case stepArrive:
		if len(q.link) > 0 {
			q.arrive(in.pick(len(q.link)), how)
		}
	case stepTime:
		w.pass(q, how, in.next())
	case stepModify:
		q.modify(how, in)
	case stepRegion:
		q.host.change(in.next())
	case stepWindow:
		q.host.changeWindow(in.next())
	case stepSet:
		q.set(how, in.next())
	case stepWatch:
		q.host.changeWatch(how, in)
	case stepClose:
		q.close()
		q.open()
		q.connect(uint32(how))
	case stepBind:
		q.bind(how, in)
	}
	for i := range w.hosts {
		w.hosts[i].check()
	}
}

// Bits of how a packet is delivered.
const (
	howPieces = 1 << iota
	howMarked
	howBECN
	howAgain // arrives, and stays on the way
	howLost
)

// arrive takes a packet off the way.
func (q *fuzzQP) arrive(i int, how byte) {
	p := q.link[i]
	if how&howAgain == 0 {
		q.link = slices.Delete(q.link, i, i+1)
	}
	if how&howLost != 0 {
		return
	}
	p.BECN = p.BECN || how&howBECN != 0
	q.peer.deliver(p.Packet, p.payload, how&howPieces != 0 || len(p.payload) > int(q.qp.mtu), how&howMarked != 0)
}

// fuzzLengths are lengths of messages that are near to something.
var fuzzLengths = [...]uint32{0, 1, 8, 44, 255, 256, 257, 512, 600, 1024, 1500, 2048, 4096, 4097, 16384, vastLen, 1 << 31, 1<<31 + 1, 1<<32 - 1}

// forge makes a packet of choices: what its peer could send, or nearly.
func (w *fuzzWorld) forge(q *fuzzQP, how byte, in *fuzzInput) {
	op := wire.Opcode(in.next())
	if op < 0x20 {
		op = op.On(q.qp.service)
	}
	if !op.Known() {
		return
	}
	flags := in.next()
	p := wire.Packet{
		Opcode: op, PKey: wire.DefaultPKey, DestQP: q.num, AckReq: flags&1 != 0, Solicited: flags&2 != 0, BECN: how&howBECN != 0,
		PSN: q.near(op, int(int8(in.next()))), DETH: wire.DETH{QKey: testKey, SrcQP: 5}, Imm: 7,
	}
	if flags&4 != 0 {
		p.DETH.QKey++
	}
	length := fuzzLengths[in.pick(len(fuzzLengths))]
	key, va := q.host.keyAt(in.next(), in.next(), length)
	x := in.next()
	p.RETH = wire.RETH{VA: va, RKey: key, Length: length}
	p.Atomic = wire.AtomicETH{VA: va, RKey: key, SwapAdd: uint64(x), Compare: binary.NativeEndian.Uint64(fuzzPristine[guardLen:])}
	p.AETH = wire.AETH{Syndrome: wire.Syndrome(x)}
	p.AtomicAck, p.InvalidateRKey = uint64(x), key
	n := length
	if flags&8 != 0 {
		n = q.payloadOf(in.next())
	}
	n = min(n, fuzzScratch)
	p.Pad = uint8(-n & 3)
	q.deliver(p, fuzzPayload[:n], how&howPieces != 0, how&howMarked != 0)
}

var fuzzPayload = pattern(make([]byte, fuzzScratch), 99)

// near is a sequence number near to that which the queue pair expects.
func (q *fuzzQP) near(op wire.Opcode, behind int) uint32 {
	from := q.qp.expected
	if op.HasAETH() || op == wire.RCReadResponseMiddle {
		from = q.qp.unaPSN
	}
	if behind < -100 || behind > 100 {
		behind <<= 16
	}
	return wire.PSNAdd(from, behind)
}

func (q *fuzzQP) payloadOf(x byte) uint32 {
	mtu := q.qp.mtu
	if x >= 16 {
		return uint32(x) - 16
	}
	return [...]uint32{0, 1, 7, 8, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu, mtu / 2, 16 * mtu, 44, 100, 88, 344, 200}[x]
}

// keyAt is a key of the host and an address that it may be good for.
func (h *fuzzHost) keyAt(which, at byte, n uint32) (key uint32, va uint64) {
	size := 0
	switch i := int(which) % (fuzzRegions + len(fuzzWindows) + 2); {
	case i < fuzzRegions:
		key, va, size = fuzzLayout[i].Key, fuzzLayout[i].Base, fuzzLayout[i].size
		if i == fuzzVast {
			size = vastLen
		}
	case i < fuzzRegions+len(fuzzWindows):
		w := &h.windows[i-fuzzRegions]
		key, va, size = w.key, w.addr, int(w.length)
		if w.zeroBased {
			va = 0
		}
	default:
		key, va = uint32(at), uint64(at)
	}
	switch {
	case at < 224:
		va += 8 * uint64(at)
	case at < 240:
		va += uint64(at) - 232 // around the beginning
	default:
		va += uint64(size) - uint64(n) + uint64(at) - 248 // around the end
	}
	return key, va
}

// raw takes a datagram without its ICRC. What says where it belongs is made to fit by how.
func (w *fuzzWorld) raw(q *fuzzQP, how byte, in *fuzzInput) {
	fit := in.next()
	b := in.take(4 * int(in.next()))
	var p wire.Packet
	if p.Parse(append(slices.Clone(b), 0, 0, 0, 0)) != nil {
		return
	}
	if fit&1 != 0 {
		p.PSN = q.near(p.Opcode, int(int8(p.PSN)))
	}
	if fit&2 != 0 {
		p.RETH.RKey, p.Atomic.RKey, p.DETH.QKey = remoteKey, remoteKey, testKey
	}
	if fit&4 != 0 {
		key := q.host.windows[0].key
		p.RETH.RKey, p.Atomic.RKey, p.InvalidateRKey = key, key, key
	}
	q.deliver(p, p.Payload, how&howPieces != 0, how&howMarked != 0)
}

// post posts a request.
func (q *fuzzQP) post(how byte, in *fuzzInput) {
	op := verbs.Opcode(in.pick(int(verbs.OpAtomicWrite) + 1))
	flags := in.next()
	n := fuzzLengths[in.pick(len(fuzzLengths))]
	if isWord(op) && flags&64 == 0 {
		n = 8
	}
	id := q.w.nextID
	q.w.nextID++
	to := q.host
	if q.peer != nil {
		to = q.peer.host
	}
	wr := verbs.SendWR{ID: id, Op: op, Imm: 9, CompareAdd: 1, Swap: 2, AH: fuzzAH{q}, RemoteQPN: to.numOf(how), RemoteQKey: testKey}
	wr.RKey, wr.RemoteAddr = to.keyAt(in.next(), in.next(), n)
	x := in.next()
	wr.InvalidateRKey = to.windows[how&3].key
	if op == verbs.OpLocalInvalidate {
		wr.InvalidateRKey = q.host.windows[how&3].key
	}
	for i, f := range [...]verbs.SendFlags{verbs.FlagSignaled, verbs.FlagSolicited, verbs.FlagFence, verbs.FlagInline} {
		if flags>>i&1 != 0 {
			wr.Flags |= f
		}
	}
	r := fuzzRequest{id: id, op: op, signaled: q.w.o.signalAll || wr.Flags&verbs.FlagSignaled != 0}
	switch {
	case op == verbs.OpLocalInvalidate || op == verbs.OpBindMW: // a bind of nothing is for bind
	case wr.Flags&verbs.FlagInline != 0:
		wr.SGL = append(wr.SGL, inlineEntry(q.w.inline[:max(1, min(n, fuzzInline+8))]))
	default:
		wr.SGL = q.source(op, n, flags, x)
		r.results, _ = q.host.sgl(nil, wr.SGL)
	}
	for _, e := range wr.SGL {
		r.length += e.Length
	}
	switch how >> 4 {
	case 1:
		wr.AH = nil
	case 2:
		wr.RemoteQKey |= 1 << 31
	case 3:
		wr.Flags |= 1 << 30
	}
	if op == verbs.OpBindMW {
		q.bind(how, in)
		return
	}
	q.submit(wr, r)
}

// numOf is the number of a queue pair of the host, or none.
func (h *fuzzHost) numOf(how byte) uint32 {
	if how&15 == 15 {
		return 0
	}
	if h == &h.w.hosts[0] {
		return clientQPN
	}
	return serverQPN
}

// source is where the data of a request are or go.
func (q *fuzzQP) source(op verbs.Opcode, n uint32, flags, x byte) []verbs.SGE {
	i := fuzzOpen
	switch op {
	case verbs.OpRead, verbs.OpCompareSwap, verbs.OpFetchAdd:
		i = fuzzResults
	}
	if flags&32 != 0 {
		i = int(x) % fuzzRegions
	}
	l := &fuzzLayout[i]
	list := []verbs.SGE{{Addr: l.Base + uint64(x), Length: n, LKey: l.Key}}
	if flags&16 != 0 && n > 1 {
		list[0].Length = n / 3
		list = append(list, verbs.SGE{}, verbs.SGE{Addr: l.Base + uint64(x) + uint64(n/3), Length: n - n/3, LKey: l.Key})
	}
	if flags&128 != 0 {
		for range x & 3 {
			list = append(list, verbs.SGE{Addr: l.Base, Length: 3, LKey: l.Key})
		}
	}
	return list
}

// submit posts a request, and expects its completion if it is taken.
func (q *fuzzQP) submit(wr verbs.SendWR, r fuzzRequest) {
	q.requests = append(q.requests, r)
	n, err := q.qp.PostSend([]verbs.SendWR{wr})
	if n == 1 && err == nil {
		return
	}
	if n != 0 || err == nil || len(q.requests) == 0 || q.requests[len(q.requests)-1].id != r.id {
		q.w.fail("%d requests are taken, error %v", n, err)
	}
	q.requests = q.requests[:len(q.requests)-1]
}

// bind posts the bind of a window.
func (q *fuzzQP) bind(how byte, in *fuzzInput) {
	x, off, n := in.next(), uint64(in.next()), 8*uint64(in.next())
	w := &q.host.windows[x%4]
	region := q.host.regions[[...]int{fuzzHidden, fuzzOpen, fuzzReadOnly, fuzzForeign}[x>>2&3]]
	b := &verbs.MWBind{
		MW: testWindow{w.Window}, MR: testRegion{region: region}, RKey: w.key&^0xff | uint32(how>>2), Addr: region.Base + off, Length: n,
		Access: [...]verbs.Access{peerAccess, peerAccess | verbs.AccessZeroBased, verbs.AccessRemoteRead, verbs.AccessRemoteWrite}[how&3],
	}
	if x&16 != 0 {
		b.RKey += 1 << 8
	}
	key := b.RKey
	if w.Type == verbs.MWType1 {
		key = verbs.NextRKey(w.RKey())
	}
	w.posted = append(w.posted, binding{region: region, key: key, addr: b.Addr, length: n, access: b.Access})
	wr := localWR(q.w.nextID, b)
	q.w.nextID++
	q.submit(wr, fuzzRequest{id: wr.ID, op: wr.Op, signaled: true})
}

// postReceive posts a receive: in one of two places, or a wrong one.
func (q *fuzzQP) postReceive(in *fuzzInput) {
	x := in.next()
	l := &fuzzLayout[fuzzBox]
	at := l.Base + 1024*uint64(x&1)
	list := []verbs.SGE{{Addr: at + 8, Length: 500, LKey: l.Key}, {Addr: at + 600, Length: 200, LKey: l.Key}}
	switch x >> 1 {
	case 1:
		list = nil
	case 2:
		list[1].LKey++
	case 3:
		list = append(list, list...)
		list = append(list, list...)
	case 4:
		list = list[:1]
	case 5:
		list = []verbs.SGE{{Addr: fuzzLayout[fuzzOpen].Base, Length: 4096, LKey: remoteKey}}
	}
	r := fuzzReceive{id: q.w.nextID}
	q.w.nextID++
	r.spans, _ = q.host.sgl(nil, list)
	for _, s := range r.spans {
		r.bytes += uint32(s.n)
	}
	all := q.receiveList()
	*all = append(*all, r)
	var n int
	var err error
	wrs := []verbs.RecvWR{{ID: r.id, SGL: list}}
	if q.rq.shared && x&128 == 0 {
		n, err = q.rq.Post(wrs)
	} else {
		n, err = q.qp.PostRecv(wrs)
	}
	if err != nil && (n != 0 || (*all)[len(*all)-1].id != r.id) {
		q.w.fail("%d receives are taken, error %v", n, err)
	} else if err != nil {
		*all = (*all)[:len(*all)-1]
	}
}

// pass advances the time: to a queue pair's deadline, or by some amount.
func (w *fuzzWorld) pass(q *fuzzQP, how, x byte) {
	switch how & 3 {
	case 0, 1:
		at := q.qp.Deadline()
		if at == 0 {
			return
		}
		w.now = max(w.now, at)
		if how&1 != 0 {
			w.now += time.Duration(x) * time.Millisecond
		}
	case 2:
		w.now += 1 << (x % 36)
	}
	for _, q := range w.all() {
		if at := q.qp.Deadline(); at == 0 || at > w.now {
			continue
		}
		q.qp.Timeout(w.now)
		if at := q.qp.Deadline(); at != 0 && at <= w.now {
			w.fail("at %v queue pair %#x wants to be called at %v, for ever", w.now, q.num, at)
		}
	}
}

// modify changes the state, or what the peer may do.
func (q *fuzzQP) modify(how byte, in *fuzzInput) {
	x := in.next()
	try := func(a verbs.QPAttr, mask verbs.QPAttrMask) error { return q.qp.Modify(a, mask) }
	switch how % 9 {
	case 0:
		q.reset()
		q.connect(uint32(x))
	case 1:
		for _, q := range q.w.all() {
			q.reset()
			q.link = q.link[:0]
		}
		for _, q := range q.w.all() {
			q.connect(uint32(x))
		}
	case 2:
		if try(verbs.QPAttr{State: verbs.QPError}, verbs.QPAttrState) == nil && (q.qp.sq.Len() > 0 || !q.rq.shared && q.rq.Len() > 0) {
			q.w.fail("in error, requests are left")
		}
	case 3:
		_ = try(verbs.QPAttr{State: verbs.QPSendQueueDrained}, verbs.QPAttrState)
	case 4:
		_ = try(verbs.QPAttr{State: verbs.QPReadyToSend}, verbs.QPAttrState)
	case 5:
		q.reset()
	case 6:
		q.forward(uint32(x))
	case 7:
		a := q.attr(0)
		a.State = q.qp.state
		a.Access = [...]verbs.Access{peerAccess, 0, verbs.AccessRemoteRead, verbs.AccessRemoteWrite}[x&3]
		_ = try(a, verbs.QPAttrState|verbs.QPAttrAccess)
	case 8:
		a := q.attr(0)
		if a.State = verbs.QPState(x % 8); a.State != verbs.QPReset { // reset has its own
			_ = try(a, verbs.QPAttrMask(1<<(x>>3)))
		}
	}
	q.failed = q.failed && q.qp.state != verbs.QPReadyToSend
	if a := q.qp.Attr(); a.State != q.qp.State() || q.qp.Num() != q.num {
		q.w.fail("attributes %+v in state %v", a, q.qp.State())
	}
}

// change removes a region, or adds it again.
func (h *fuzzHost) change(x byte) {
	i := int(x) % fuzzRegions
	r := h.regions[i]
	if r.closed {
		h.register(i)
		return
	}
	n := h.memory.Len()
	h.memory.Remove(r)
	if h.memory.Len() != n-1 {
		h.w.fail("%d regions of %d are left", h.memory.Len(), n)
	}
	h.watches = slices.DeleteFunc(h.watches, func(w *fuzzWatch) bool { return w.region == r })
}

func (h *fuzzHost) changeWindow(x byte) {
	i := int(x) % len(h.windows)
	w := &h.windows[i]
	if w.closed {
		h.addWindow(i)
		return
	}
	r := w.region
	bound := 0
	if r != nil {
		bound = r.Bound()
	}
	h.memory.RemoveWindow(w.Window)
	if w.region != nil || r != nil && r.Bound() != bound-1 || h.memory.Windows() > len(h.windows) {
		h.w.fail("window %d is bound and removed", i)
	}
	w.see()
}

// set does what a device does with a queue pair, other than receive and transmit.
func (q *fuzzQP) set(how, x byte) {
	switch how % 11 {
	case 0:
		q.qp.PeerUnreachable(q.w.now)
	case 1:
		q.qp.PeerGone()
		q.host.checkWindows()
	case 2:
		q.qp.SetCongestionControl(x&1 != 0)
	case 3:
		if s := q.qp.state; s == verbs.QPReadyToReceive || s == verbs.QPReadyToSend {
			q.qp.SetLargestPacket(uint32(1) << (x % 32))
		}
	case 4:
		q.qp.SetLossless()
	case 5:
		q.qp.SetWindow(1 << (x % 24))
	case 6:
		if x&1 != 0 {
			q.qp.HoldAck(1, 0)
		} else {
			q.qp.HoldAck(AllButLast, q.w.now+time.Millisecond)
		}
	case 7:
		q.host.guard.open = !q.host.guard.open
	case 8:
		q.rq.SetLimit(int(x % 10))
	case 9:
		q.link = q.link[:0]
	case 10:
		q.transmit(200)
	}
}

// changeWatch has a region watched, or ends a watch.
func (h *fuzzHost) changeWatch(how byte, in *fuzzInput) {
	x, at, n := in.next(), int(in.next()), int(in.next())
	if how&1 != 0 && len(h.watches) > 0 {
		i := int(x) % len(h.watches)
		h.watches[i].cancel()
		h.watches[i].cancel()
		h.watches = slices.Delete(h.watches, i, i+1)
		return
	}
	i := int(x) % fuzzVast
	if h.regions[i].closed || len(h.watches) > 32 {
		return
	}
	at = min(at*8, fuzzLayout[i].size-1)
	h.watch(i, at, min(n+1, fuzzLayout[i].size-at))
}
