package transport

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/internal/roce/wire"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	xrcSlots   = 4
	xrcSlotLen = 2048
)

// xrcServer is a host with an XRC domain of several queues, each in a protection domain of its own.
type xrcServer struct {
	memory  *Memory
	domain  map[uint32]*XRCQueue
	members []*xrcMember
}

// xrcMember is one of the queues.
type xrcMember struct {
	completions
	number  uint32
	queue   *RecvQueue
	slots   *arena // of receives
	remote  *arena // that requests name
	awaited map[uint32][]xrcMessage
	added   uint64
}

// xrcMessage is a message that a queue is to complete.
type xrcMessage struct {
	wc   verbs.WC
	seed int
	at   int // of a write in remote
}

func newXRCServer(t tb, queues int) *xrcServer {
	s := &xrcServer{memory: NewMemory(), domain: make(map[uint32]*XRCQueue)}
	for i := range queues {
		m := &xrcMember{number: uint32(0xabc000 + i), awaited: make(map[uint32][]xrcMessage)}
		pd := uint32(testDomain + i)
		m.queue = NewRecvQueue(s.memory, pd, xrcSlots, 4)
		m.queue.Share(nil)
		m.slots = newArena(t, s.memory, uint32(0x10+i), uint64(i+1)<<32, xrcSlots*xrcSlotLen, verbs.AccessLocalWrite)
		m.remote = newArena(t, s.memory, uint32(0x20+i), uint64(i+1)<<40, 8+4*xrcOutstanding*xrcSlotLen, everyAccess)
		m.slots.Domain, m.remote.Domain = pd, pd
		s.domain[m.number] = NewXRCQueue(m.queue, m)
		s.members = append(s.members, m)
	}
	return s
}

func (m *xrcMember) post(t tb, slot uint64) {
	n, err := m.queue.Post([]verbs.RecvWR{{ID: slot, SGL: []verbs.SGE{m.slots.sge(int(slot)*xrcSlotLen, xrcSlotLen)}}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// check compares what was completed with what was sent, and posts the receives again, later.
func (m *xrcMember) check(w *network) {
	for _, wc := range m.take() {
		require.NotEmpty(w.t, m.awaited[wc.QPN], "%+v", wc)
		message := m.awaited[wc.QPN][0]
		m.awaited[wc.QPN] = m.awaited[wc.QPN][1:]
		slot := wc.ID
		message.wc.ID = slot
		require.Equal(w.t, message.wc, wc)
		got := m.slots.Mem[slot*xrcSlotLen:][:wc.Bytes]
		if wc.Opcode == verbs.WCRecvWriteImm {
			got = m.remote.Mem[message.at:][:wc.Bytes]
		}
		require.Equal(w.t, pattern(make([]byte, wc.Bytes), message.seed), got)
		w.After(time.Duration(w.Random.IntN(100))*time.Microsecond, func() { m.post(w.t, slot) })
	}
}

// xrcClient sends random requests to the queues of a server.
type xrcClient struct {
	*node
	local    *arena
	recvQPN  uint32
	requests int
	posted   int
	done     int
}

const xrcOutstanding = 8

func (c *xrcClient) work(s *xrcServer) {
	for _, wc := range c.send.take() {
		require.Equal(c.t, verbs.StatusSuccess, wc.Status)
		require.Equal(c.t, uint64(c.done), wc.ID)
		c.done++
	}
	random := c.net.Random
	for ; c.posted < c.requests && c.posted-c.done < xrcOutstanding; c.posted++ {
		m := s.members[random.IntN(len(s.members))]
		op := []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpWrite, verbs.OpWriteImm, verbs.OpRead, verbs.OpFetchAdd}[random.IntN(6)]
		n, slot, seed := random.IntN(xrcSlotLen), c.posted%xrcOutstanding, random.IntN(256)
		if op == verbs.OpFetchAdd {
			n = 8
		}
		at := 8 + (int(c.qp.num&1)*2*xrcOutstanding+c.posted%(2*xrcOutstanding))*xrcSlotLen
		wr := verbs.SendWR{
			ID: uint64(c.posted), Op: op, Flags: verbs.FlagSignaled, SGL: []verbs.SGE{c.local.sge(slot*xrcSlotLen, n)},
			RemoteAddr: m.remote.Base + uint64(at), RKey: m.remote.Key, Imm: uint32(c.posted), RemoteSRQN: m.number,
		}
		pattern(c.local.Mem[slot*xrcSlotLen:][:n], seed)
		wc := verbs.WC{QPN: c.recvQPN, Bytes: uint32(n), Opcode: verbs.WCRecv}
		switch op {
		case verbs.OpFetchAdd:
			wr.RemoteAddr, wr.CompareAdd = m.remote.Base, uint64(seed)
			m.added += uint64(seed)
		case verbs.OpWriteImm:
			wc.Opcode = verbs.WCRecvWriteImm
		}
		if op == verbs.OpSendImm || op == verbs.OpWriteImm {
			wc.HasImm, wc.Imm = true, wr.Imm
		}
		if op == verbs.OpSend || wc.HasImm {
			m.awaited[c.recvQPN] = append(m.awaited[c.recvQPN], xrcMessage{wc, seed, at})
		}
		c.end.post(wr)
	}
}

func (a *arena) Len() int { return len(a.Mem) }

// Two ends send to the queues of one domain, each through a receive queue pair of its own, on a
// network that loses, repeats and reorders packets, to receivers that often are not ready.
func TestXRC(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newNetwork(t, seed, faults{Loss: 0.03, Duplicate: 0.03, Reorder: 0.03})
			s := newXRCServer(t, 3)
			for _, m := range s.members {
				for slot := range uint64(xrcSlots) {
					m.post(t, slot)
				}
			}
			var clients []*xrcClient
			for i := range uint32(2) {
				o := options{kind: verbs.XRCSend, adaptive: seed%2 == 1}.defaults()
				c := &xrcClient{requests: 200, recvQPN: 0x200 + i}
				memory := NewMemory()
				c.local = newArena(t, memory, 1, 1<<20, xrcOutstanding*xrcSlotLen, everyAccess)
				c.node = w.attach(newEnd(t, 0x100+i, memory, o))
				o.kind, o.xrc = verbs.XRCRecv, s.domain
				server := w.attach(newEnd(t, c.recvQPN, s.memory, o))
				w.join(c.node, server)
				c.ready(o.attr(c.recvQPN, 0xfffff0, 5))
				server.ready(o.attr(c.qp.Num(), 5, 0xfffff0))
				c.wake = func() { c.work(s) }
				server.wake = func() {
					for _, m := range s.members {
						m.check(w)
					}
				}
				clients = append(clients, c)
			}
			for _, c := range clients {
				c.settle()
			}
			w.run(time.Hour)
			rnr := 0
			for _, c := range clients {
				require.Equal(t, c.requests, c.done)
				c.requireQuiet()
				c.peer.requireQuiet()
				rnr += int(c.counters.RNRNaksReceived)
			}
			require.NotZero(t, rnr)
			for _, m := range s.members {
				for _, list := range m.awaited {
					require.Empty(t, list)
				}
				require.Equal(t, m.added, *word(m.remote.Mem))
				require.Equal(t, xrcSlots, m.queue.Len())
				require.Equal(t, xrcSlots, m.queue.taken)
				m.slots.requireGuards(t)
				m.remote.requireGuards(t)
			}
		})
	}
}

// xrcRig is a rig whose server has an XRC domain.
func xrcRig(t tb) (*rig, *xrcServer) {
	o := options{}.defaults()
	s := newXRCServer(t, 2)
	r := &rig{t: t, o: o, now: time.Second, remote: s.members[0].remote}
	o.kind = verbs.XRCSend
	r.client = newEnd(t, clientQPN, NewMemory(), o)
	r.local = newArena(t, r.client.memory, localKey, localBase, o.arena, everyAccess)
	o.kind, o.xrc = verbs.XRCRecv, s.domain
	r.server = newEnd(t, serverQPN, s.memory, o)
	r.client.ready(o.attr(serverQPN, 0, 0))
	r.server.ready(o.attr(clientQPN, 0, 0))
	return r, s
}

// A request that names no queue of the domain, or memory of another queue's protection domain, ends
// the connection.
func TestXRCViolations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		op     verbs.Opcode
		srqn   uint32
		status verbs.Status
		event  verbs.EventType
	}{
		{"send to no queue", verbs.OpSend, 0xabc002, verbs.StatusRemoteInvalidRequest, verbs.EventQPRequestError},
		{"send to queue 0", verbs.OpSend, 0, verbs.StatusRemoteInvalidRequest, verbs.EventQPRequestError},
		{"write to no queue", verbs.OpWrite, 0xabc002, verbs.StatusRemoteInvalidRequest, verbs.EventQPRequestError},
		{"read to no queue", verbs.OpRead, 0xabc002, verbs.StatusRemoteInvalidRequest, verbs.EventQPRequestError},
		{"write with another queue's key", verbs.OpWrite, 0xabc001, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
		{"read with another queue's key", verbs.OpRead, 0xabc001, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
		{"atomic with another queue's key", verbs.OpFetchAdd, 0xabc001, verbs.StatusRemoteAccessError, verbs.EventQPAccessError},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, s := xrcRig(t)
			s.members[0].post(t, 0)
			wr := r.wr(1, c.op, 8)
			wr.RemoteSRQN = c.srqn
			r.requireFailed(wr, c.status)
			assert.Equal(t, verbs.QPError, r.server.qp.State())
			assert.Equal(t, []verbs.EventType{c.event}, r.server.events, "no last request reached")
			assert.Empty(t, s.members[0].list)
			assert.Equal(t, 1, s.members[0].queue.Len())
			assert.Equal(t, make([]byte, s.members[0].remote.Len()), s.members[0].remote.Mem)
		})
	}
}

// The packets of one message name one queue.
func TestXRCMessageNamesOneQueue(t *testing.T) {
	t.Parallel()
	r, s := xrcRig(t)
	for _, m := range s.members {
		m.post(t, 0)
	}
	wr := r.wr(1, verbs.OpSend, 600)
	wr.RemoteSRQN = s.members[0].number
	r.client.post(wr)
	packets := r.client.transmit(r.now)
	require.Len(t, packets, 3)
	for i := range packets {
		require.Equal(t, wire.ServiceXRC, packets[i].Opcode.Service())
		require.Equal(t, wr.RemoteSRQN, packets[i].SRQN)
	}
	packets[2].SRQN = s.members[1].number
	r.server.take(r.now, packets...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusRemoteInvalidRequest)
	list := s.members[0].take()
	require.Len(t, list, 1)
	assert.Equal(t, verbs.StatusFlushed, list[0].Status)
	assert.Empty(t, s.members[1].take())
}

// Closing a queue drops the receive that a message fills. The rest of the message is refused.
func TestXRCQueueClosed(t *testing.T) {
	t.Parallel()
	r, s := xrcRig(t)
	m := s.members[0]
	m.post(t, 0)
	wr := r.wr(1, verbs.OpSend, 600)
	wr.RemoteSRQN = m.number
	r.client.post(wr)
	packets := r.client.transmit(r.now)
	r.server.take(r.now, packets[:2]...)
	closed := s.domain[m.number]
	delete(s.domain, m.number)
	r.server.qp.QueueClosed(closed)
	r.server.take(r.now, packets[2:]...)
	r.client.take(r.now, r.server.transmit(r.now)...)
	r.requireSent(1, verbs.StatusRemoteInvalidRequest)
	assert.Empty(t, m.take())
}

// A closed queue pair gives its receive in use back; completions of its queue stay.
func TestXRCCloseKeepsCompletions(t *testing.T) {
	t.Parallel()
	r, s := xrcRig(t)
	m := s.members[0]
	m.post(t, 0)
	m.post(t, 1)
	for id, n := range []int{8, 600} {
		wr := r.wr(uint64(id), verbs.OpSend, n)
		wr.RemoteSRQN = m.number
		r.client.post(wr)
	}
	r.server.take(r.now, r.client.transmit(r.now)[:2]...)
	require.Equal(t, 2, m.queue.taken)
	r.server.qp.Close()
	assert.Equal(t, 1, m.queue.taken, "that of the completion")
	require.Equal(t, []uint64{0}, ids(m.take()))
	assert.Zero(t, m.queue.taken)
}

// A read repeated in the midst of a message to another queue is answered.
func TestXRCRepeatedRead(t *testing.T) {
	t.Parallel()
	r, s := xrcRig(t)
	s.members[1].post(t, 0)
	pattern(s.members[0].remote.Mem, 3)
	read, send := r.wr(1, verbs.OpRead, 8), r.wr(2, verbs.OpSend, 600)
	read.RemoteSRQN, send.RemoteSRQN = s.members[0].number, s.members[1].number
	r.client.post(read, send)
	packets := r.client.transmit(r.now)
	require.Len(t, packets, 4)
	r.server.take(r.now, packets[:3]...)
	r.server.transmit(r.now) // is lost
	r.server.take(r.now, packets[0])
	assert.Equal(t, []wire.Opcode{wire.RCReadResponseOnly.On(wire.ServiceXRC)}, opcodes(r.server.transmit(r.now)))
	r.server.take(r.now, packets[3])
	assert.Len(t, s.members[1].take(), 1)
}

// Packets of other services, and requests to the end that sends, are counted and dropped.
func TestXRCServices(t *testing.T) {
	t.Parallel()
	r, s := xrcRig(t)
	s.members[0].post(t, 0)
	request := wire.Packet{Opcode: wire.RCSendOnly, DestQP: serverQPN, SRQN: s.members[0].number}
	r.server.take(r.now, request)
	assert.Equal(t, uint64(1), r.server.counters.WrongService, "RC to an XRC queue pair")
	request.Opcode = request.Opcode.On(wire.ServiceXRC)
	r.client.take(r.now, request)
	assert.Equal(t, uint64(1), r.client.counters.WrongService, "a request to the end that sends")
	assert.Empty(t, r.client.transmit(r.now))
	rc := newRig(t, options{})
	rc.server.postRecv(verbs.RecvWR{})
	rc.server.take(rc.now, request)
	assert.Equal(t, uint64(1), rc.server.counters.WrongService, "XRC to an RC queue pair")
	r.server.take(r.now, request)
	assert.Len(t, s.members[0].take(), 1)

	request.Opcode, request.PSN = wire.Opcode(0xb5), 1
	r.server.take(r.now, request)
	packets := r.server.transmit(r.now)
	require.NotEmpty(t, packets)
	assert.Equal(t, wire.Nak(wire.NakInvalidRequest), packets[len(packets)-1].AETH.Syndrome, "an unknown opcode")
}

// XRC queue pairs have no receives of their own, and the receiving end sends no requests.
func TestXRCPosts(t *testing.T) {
	t.Parallel()
	r, _ := xrcRig(t)
	for _, e := range []*end{r.client, r.server} {
		_, err := e.qp.PostRecv([]verbs.RecvWR{{}})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		assert.ErrorContains(t, err, "post to a shared receive queue")
	}
	_, err := r.server.qp.PostSend([]verbs.SendWR{r.wr(1, verbs.OpSend, 8)})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	wr := r.wr(1, verbs.OpSend, 8)
	wr.RemoteSRQN = 1 << 24
	_, err = r.client.qp.PostSend([]verbs.SendWR{wr})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	assert.ErrorContains(t, err, "24 bits")
	for _, kinds := range [][2]verbs.QPType{{verbs.RC, verbs.RC}, {verbs.UC, verbs.UC}, {verbs.XRCSend, verbs.XRCRecv}} {
		assert.True(t, Pairs(kinds[0], kinds[1]))
	}
	assert.False(t, Pairs(verbs.XRCSend, verbs.XRCSend))
	assert.False(t, Pairs(verbs.RC, verbs.XRCRecv))
}
