package protocol

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Any private data is refused, or is that of a sender with memory where memory can be, and encodes to
// the same again.
func FuzzDecodeHello(f *testing.F) {
	h := Hello{BigEndian: true, Iomaps: true, Credits: 384, Target: Entry{1 << 40, 7, Entries}, Buffer: Entry{1 << 41, 8, 64 << 10}}
	valid := h.Encode()
	f.Add(valid)
	f.Add(valid[:HelloSize-1])
	f.Add(append(valid, make([]byte, 16)...))
	f.Add(make([]byte, 56))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := DecodeHello(b)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.NotZero(t, h.Credits)
		require.GreaterOrEqual(t, h.Target.Addr+Entries*EntrySize, h.Target.Addr)
		require.GreaterOrEqual(t, h.Buffer.Addr+uint64(h.Buffer.Length), h.Buffer.Addr)
		again, err := DecodeHello(h.Encode())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

// Any 16 bytes are an entry, in both byte orders.
func FuzzEntry(f *testing.F) {
	f.Add(make([]byte, EntrySize))
	f.Add([]byte("0123456789abcdef"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < EntrySize {
			return
		}
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			var again [EntrySize]byte
			e := DecodeEntry(b, order)
			e.Put(again[:], order)
			require.Equal(t, b[:EntrySize], again[:])
			if e.Check() == nil {
				require.GreaterOrEqual(t, e.Addr+uint64(e.Length), e.Addr)
			}
		}
	})
}

// steps are the steps of FuzzEnd, which reads them from its input.
type steps []byte

func (s *steps) byte() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *steps) word() uint32 {
	return uint32(s.byte())<<24 | uint32(s.byte())<<16 | uint32(s.byte())<<8 | uint32(s.byte())
}

// One end of a connection takes any sequence of messages of its peer, while its program does what it
// may. Whatever the peer sends, the end never uses more of the peer than the peer has granted, never
// takes more than it has granted itself, and refuses everything after a violation is found.
func FuzzEnd(f *testing.F) {
	f.Add(uint16(64), uint16(384), uint32(1<<10), []byte{1, 0, 0, 0, 0, 100, 0, 100, 0, 1, 4, 0, 2, 0x80, 0, 0, 80, 16, 0, 3, 0, 0, 1, 0, 5, 5, 6, 1, 0xe0, 0, 0, 2, 0, 0})
	f.Add(uint16(1), uint16(1), uint32(0), []byte{1, 0x80, 0, 0, 1, 16, 0, 3, 0, 0, 0, 9, 5, 200, 5, 200, 6})
	f.Add(uint16(65535), uint16(65535), uint32(1<<32-1), []byte{5, 255, 1, 0x80, 0, 255, 255, 0, 0, 6, 5, 255})
	// A buffer is announced, without credit, between a withdraw message and its answer, which waits for
	// the answer before it or for a withdraw message of this end. Then comes the credit.
	withdraw, announce, credit := []byte{0, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, []byte{0, 0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 9, 0}, []byte{0, 0x80, 0, 0, 0, 0, 0, 0, 0, 1}
	for _, before := range [][]byte{slices.Concat(withdraw, []byte{8}), {8}} {
		f.Add(uint16(64), uint16(1), uint32(100), slices.Concat([]byte{5, 0, 1}, before, withdraw, announce, []byte{9, 8}, credit, []byte{5, 0, 0}))
	}
	f.Fuzz(func(t *testing.T, queue, peerQueue uint16, first uint32, input []byte) {
		if queue == 0 || peerQueue == 0 {
			return // a Hello has credits
		}
		check := func(ok bool, what string, args ...any) {
			if !ok {
				t.Helper()
				t.Fatalf(what, args...)
			}
		}
		e := NewEnd(queue)
		withdraws := queue%2 == 0
		e.Meet(&Hello{Credits: peerQueue, Buffer: Entry{Length: first}, Withdrawals: withdraws})
		var (
			sent, reach       int // in messages, without wrapping
			announced         = []uint32{first}
			arrived, granted  = 0, int(queue)
			ended, gone, over bool
			control           []int

			// As a connection does, the model has the buffers that were announced until the answer is
			// sent, and sends a withdraw message or an answer when the last one has been sent.
			targets                 []uint32
			withdrawing, withdrawal bool // a withdraw message has no answer; one or an answer is under way
		)
		reach = int(peerQueue)
		if first == 0 {
			announced = nil
		}
		targets = slices.Clone(announced)
		s := steps(input)
		for len(s) > 0 && !over {
			switch s.byte() % 10 {
			case 0, 1, 2: // a message of the peer
				imm, length, room := Imm(s.word()), int(s.byte()), int(s.byte())
				if s.byte()%2 == 0 { // one that is likely to be valid
					length = map[Op]int{OpData: imm.Value() & 0xff, OpSGL: int(s.byte()%2) * EntrySize}[imm.Op()]
					if imm.Op() == OpData {
						imm, room = NewImm(OpData, length), length+int(s.byte())
					} else if imm.Op() == OpSGL {
						imm = NewImm(OpSGL, reach+int(s.byte())%(int(peerQueue)-(reach-sent)+1))
					} else if imm.Op() == OpControl && s.byte()%2 == 0 {
						imm = NewImm(OpControl, []int{Withdraw, Withdrawn}[s.byte()%2])
					}
				}
				event, err := e.Take(imm, length, room)
				if err != nil {
					check(err.Error() != "", "an error without a text")
					over = true
					break
				}
				switch imm.Op() {
				case OpData:
					check(event == Arrived, "event %d of data", event)
					check(!ended, "data came after its end")
					check(imm.Value() == length && length <= room, "%v of %d bytes was taken for %d", imm, length, room)
					arrived++
					check(arrived <= granted, "%d messages arrived, %d were granted", arrived, granted)
				case OpSGL:
					check(length == 0 || length == EntrySize, "an SGL message of %d bytes", length)
					reach = sent + int(imm.Sequence()-uint16(sent))
					check(reach <= sent+int(peerQueue), "%d messages may be under way", reach-sent)
					if length == 0 {
						check(event == Nothing, "event %d of credits", event)
						break
					}
					check(event == Announced, "event %d of an entry", event)
					check(e.Target() == 0 || e.Target() == 1, "entry %d", e.Target())
					b := Entry{Addr: uint64(s.word()) << 32, Length: uint32(s.byte())}
					if s.byte() == 1 {
						b.Addr, b.Length = ^uint64(0)-100, s.word()
					}
					if err := e.Announce(b); err != nil {
						over = true
						break
					}
					check(b.Length > 0, "an empty buffer")
					announced, targets = append(announced, b.Length), append(targets, b.Length)
					check(len(announced) <= Entries, "%d buffers", len(announced))
				case OpControl:
					check(length == 0, "a control message with data")
					switch imm.Value() {
					case Withdraw:
						check(withdraws && event == Nothing, "event %d of a withdraw message", event)
						announced = nil
					case Withdrawn:
						check(withdrawing && event == Returned, "event %d of an answer", event)
						withdrawing = false
					case Shutdown, Disconnect:
						check(event == Ended, "event %d of the end", event)
						ended, gone = true, gone || imm.Value() == Disconnect
					}
				default:
					t.Fatalf("%v was taken", imm)
				}
			case 3, 4: // SGL messages of this end
				imm, index := e.Grant(s.byte()%2 == 0)
				granted = arrived + int(queue)
				check(imm.Op() == OpSGL && imm.Sequence() == uint16(granted) && (index == 0 || index == 1), "%v, entry %d", imm, index)
			case 5, 6: // data of this end
				room := e.Room()
				if room == 0 {
					check(gone || sent == reach || len(announced) == 0, "no room, but credits and a buffer")
					break
				}
				check(!gone && sent < reach && int(min(announced[0], valueMask)) == room, "room for %d, %d credits", room, reach-sent)
				check(slices.Equal(announced, targets), "room in %v, but the buffers are %v", announced, targets)
				n := min(1+int(s.byte()), room)
				if s.byte()%4 == 0 {
					n = room
				}
				imm, full := e.Send(n)
				sent++
				announced[0] -= uint32(n)
				targets[0] -= uint32(n)
				check(full == (announced[0] == 0), "full: %v", full)
				if full {
					announced, targets = announced[1:], targets[1:]
				}
				check(imm.Op() == OpData && imm.Value() == n, "%v of %d bytes", imm, n)
			case 7: // the end of this end's data
				if imm, due := e.Finish(s.byte()%2 == 0); due {
					check(!gone && imm.Op() == OpControl, "%v", imm)
					control = append(control, imm.Value())
				}
			case 8: // a withdraw message of this end, or an answer
				if withdrawal {
					break
				}
				if e.AnswerDue() {
					e.Answer()
					targets, withdrawal = nil, true
				} else if imm, ok := e.Withdraw(); ok {
					check(withdraws && !withdrawing && imm == NewImm(OpControl, Withdraw), "%v", imm)
					withdrawing, withdrawal = true, true
				}
			case 9: // it was sent
				withdrawal = false
			}
			check(withdrawing == e.Withdrawing(), "withdrawing: %v", e.Withdrawing())
			check(ended == e.Ended() && gone == e.Gone(), "ended: %v, gone: %v", e.Ended(), e.Gone())
		}
		// At most a shutdown, and then a disconnect.
		check(len(control) == 0 || len(control) == 1 && control[0] != Keepalive || slices.Equal(control, []int{Shutdown, Disconnect}), "control messages %v", control)
	})
}

// Sequence numbers wrap, in both directions.
func TestSequenceNumbersWrap(t *testing.T) {
	a, b := NewEnd(64), NewEnd(384)
	a.Meet(&Hello{Credits: 384, Buffer: Entry{Length: 1 << 30}})
	b.Meet(&Hello{Credits: 64, Buffer: Entry{Length: 1 << 30}})
	for i := range 200_000 {
		from, to := &a, &b
		if i%2 == 0 {
			from, to = to, from
		}
		imm, _ := from.Send(1)
		if _, err := to.Take(imm, 1, 1); err != nil || from.Room() == 0 {
			t.Fatal(i, err)
		}
		if to.GrantDue() {
			imm, _ := to.Grant(false)
			if _, err := from.Take(imm|1<<16, 0, 0); err != nil { // a carry, as the C library sends it
				t.Fatal(i, err)
			}
		}
	}
}

// The peer never gets more credits than it has receives for.
func TestCreditsRunOut(t *testing.T) {
	a, b := NewEnd(64), NewEnd(64)
	a.Meet(&Hello{Credits: 64, Buffer: Entry{Length: 1 << 30}})
	for range 64 {
		imm, _ := a.Send(1)
		_, err := b.Take(imm, 1, 1)
		require.NoError(t, err)
	}
	require.Zero(t, a.Room())
	_, err := b.Take(NewImm(OpData, 1), 1, 1)
	require.ErrorContains(t, err, "no credit")
}
