// Package kv is shared by the programs of the key-value store: the layout of a record, the
// server's table of slots, and a client's connection. The text of kv_server describes the
// protocol.
package kv

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
)

const (
	// Slots is the server's number of slots, and SlotSize the size of each in bytes.
	Slots, SlotSize = 4096, 4096
	// KeySize is the length of a key, padded with zeros.
	KeySize = 24
	// NoSlot is the number in an immediate value that stands for no slot.
	NoSlot = 1<<24 - 1
	// MaxClients is how many clients the server serves at a time.
	MaxClients = 16
	// Window is the greatest number of a client's requests in flight, and of slots that it
	// holds.
	Window = 32

	keyAt, valueAt = 8, 8 + KeySize
)

// Fill writes a record with a random value, and returns its length.
func Fill(slot []byte, key string, rng *rand.Rand) int {
	n := valueAt + rng.IntN(SlotSize-valueAt)
	record := slot[:n]
	clear(record[:valueAt])
	copy(record[keyAt:], key)
	copy(record[valueAt:], bytes.Repeat([]byte{byte(rng.Uint32()), byte(n)}, n))
	binary.LittleEndian.PutUint32(record[4:], uint32(n-valueAt))
	binary.LittleEndian.PutUint32(record, checksum(key, record[valueAt:]))
	return n
}

// Holds reports whether a slot that was read has a complete record of the key. The slot may
// have been reused, or be changed during the read.
func Holds(slot []byte, key string) bool {
	n := min(binary.LittleEndian.Uint32(slot[4:]), SlotSize-valueAt)
	return binary.LittleEndian.Uint32(slot) == checksum(key, slot[valueAt:valueAt+n])
}

func checksum(key string, value []byte) uint32 {
	return crc32.ChecksumIEEE(append([]byte(key), value...))
}

// Table is the server's table of slots.
type Table struct {
	memory []byte
	index  map[[KeySize]byte]uint32 // the slot of each key
	free   []uint32                 // the slot that was freed first comes first
}

// Granted is the set of slots that a client may publish.
type Granted map[uint32]bool

// NewTable returns a table of Slots slots.
func NewTable(memory []byte) *Table {
	t := &Table{memory: memory, index: map[[KeySize]byte]uint32{}}
	for i := range uint32(Slots) {
		t.free = append(t.free, i)
	}
	return t
}

// Find returns the slot of a key, or NoSlot.
func (t *Table) Find(key []byte) uint32 {
	var k [KeySize]byte
	copy(k[:], key)
	if slot, ok := t.index[k]; ok {
		return slot
	}
	return NoSlot
}

// Grant assigns a free slot to a client and returns it, or NoSlot.
func (t *Table) Grant(to Granted) uint32 {
	if len(t.free) == 0 || len(to) >= Window {
		return NoSlot
	}
	slot := t.free[0]
	t.free = t.free[1:]
	to[slot] = true
	return slot
}

// Publish makes the record in a client's slot the value of its key. It clears and frees the
// slot of the previous value: clients that read that slot see no valid record, and ask again.
func (t *Table) Publish(slot uint32, of Granted) {
	delete(of, slot)
	key := [KeySize]byte(t.memory[slot*SlotSize+keyAt:])
	if old, ok := t.index[key]; ok {
		clear(t.memory[old*SlotSize:][:valueAt])
		t.free = append(t.free, old)
	}
	t.index[key] = slot
}

// Revoke frees the slots of a client.
func (t *Table) Revoke(from Granted) {
	for slot := range from {
		t.free = append(t.free, slot)
	}
}
