package transfer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/verbena-rdma/verbena/internal/fifo"
	"github.com/verbena-rdma/verbena/mmap"
)

// Segment is memory of this program that items and, if it is published, other agents use.
type Segment struct {
	agent  *Agent
	name   string
	mem    []byte
	perm   mmap.Permission
	first  uintptr     // its address in this program
	maps   []*mmap.Map // by device; nil: it was dead
	record *record     // as the directory has it
	inUse  int         // items that have not ended
	cached bool        // in Agent.cached, and not in Agent.segments
	place  fifo.Node[*Segment]
}

// Register registers memory with all devices of the agent, and publishes it by the name, which has up
// to 64 bytes; without a name it is for items only. The memory is pinned, and stays the caller's. Its
// permissions say what the devices may do: items that read into it need mmap.LocalReadWrite, and peers
// mmap.RemoteRead, RemoteWrite or RemoteAtomic. Without these it cannot be published.
//
// The errors match ErrExists, ErrInvalid if a byte belongs to another segment, ErrPermission, ErrClosed,
// and those of mmap.Register.
func (a *Agent) Register(name string, mem []byte, perm mmap.Permission) (*Segment, error) {
	fail := func(err error) (*Segment, error) {
		return nil, fmt.Errorf("register %d bytes as segment %q: %w", len(mem), name, err)
	}
	switch {
	case len(name) > len(record{}.Name) || strings.Contains(name, "\x00"):
		return fail(fmt.Errorf("%w: the name has more than %d bytes, or a zero", ErrInvalid, len(record{}.Name)))
	case len(mem) == 0:
		return fail(fmt.Errorf("%w: no memory", ErrRange))
	case name != "" && perm&remotePermissions == 0:
		return fail(fmt.Errorf("%w: no peer could use it; give it a permission such as mmap.RemoteRead", ErrPermission))
	}
	s, err := a.newSegment(name, mem, perm)
	if err != nil {
		return fail(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.closed
	at, _ := slices.BinarySearchFunc(a.segments, s, byAddress)
	under, exists := slices.BinarySearchFunc(a.names, s.record, byName)
	switch {
	case err != nil:
	case exists && name != "":
		err = fmt.Errorf("%w: this agent publishes a segment of that name; close it first", ErrExists)
	case len(a.names) == maxSegments && name != "":
		err = fmt.Errorf("%w: an agent publishes at most %d segments", ErrRange, maxSegments)
	case at > 0 && a.segments[at-1].end() > s.first:
		err = fmt.Errorf("%w: a part of the memory belongs to segment %q", ErrInvalid, a.segments[at-1].name)
	case at < len(a.segments) && a.segments[at].first < s.end():
		err = fmt.Errorf("%w: a part of the memory belongs to segment %q", ErrInvalid, a.segments[at].name)
	}
	if err != nil {
		return fail(errors.Join(err, s.release()))
	}
	a.segments = slices.Insert(a.segments, at, s)
	if name != "" {
		a.names = slices.Insert(a.names, under, s.record)
		writeDirectory(a.directory.mem, a.names)
	}
	return s, nil
}

// newSegment registers memory with all devices that are not dead.
func (a *Agent) newSegment(name string, mem []byte, perm mmap.Permission) (*Segment, error) {
	s := &Segment{agent: a, name: name, mem: mem, perm: perm, first: firstByte(mem), maps: make([]*mmap.Map, len(a.devices))}
	s.record = &record{Size: uint64(len(mem)), Perm: uint8(perm & remotePermissions), Devices: uint8(len(a.devices))}
	copy(s.record.Name[:], name)
	for i, d := range a.devices {
		k := &s.record.Keys[i]
		var err error
		if s.maps[i], err = mmap.Register(d.device, mem, perm); err == nil && s.record.Perm != 0 {
			k.Addr = s.maps[i].Addr()
			k.Key, err = s.maps[i].ExportKey(d.transport.PD())
		}
		if err != nil && !d.isDead() {
			return nil, errors.Join(err, s.release())
		}
	}
	return s, nil
}

func byAddress(s, t *Segment) int { return cmp.Compare(s.first, t.first) }
func byName(r, t *record) int     { return bytes.Compare(r.Name[:], t.Name[:]) }

func (s *Segment) end() uintptr { return s.first + uintptr(len(s.mem)) }

// Name is the name by which it is published.
func (s *Segment) Name() string { return s.name }

// Bytes is the memory.
func (s *Segment) Bytes() []byte { return s.mem }

// Close takes the memory back: when it has returned, no peer and no device can touch it. A peer that
// tries fails, with its connection. Close fails with ErrInUse while items use the memory. Closing again
// does nothing.
func (s *Segment) Close() error {
	a := s.agent
	a.mu.Lock()
	if s.inUse > 0 {
		defer a.mu.Unlock()
		return fmt.Errorf("close segment %q: %w by %d items", s.name, ErrInUse, s.inUse)
	}
	a.segments = slices.DeleteFunc(a.segments, func(t *Segment) bool { return t == s })
	if s.name != "" {
		a.names = slices.DeleteFunc(a.names, func(r *record) bool { return r == s.record })
		writeDirectory(a.directory.mem, a.names)
	}
	a.mu.Unlock()
	return s.release()
}

func (s *Segment) release() (err error) {
	for _, m := range s.maps {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

// find returns a segment that a slice is part of, if it finds one. The latest that begins at or before the slice is
// asked: in overlapping ones of the cache the slice may be registered again.
func find(segments []*Segment, slice []byte) *Segment {
	first := firstByte(slice)
	after := sort.Search(len(segments), func(i int) bool { return segments[i].first > first })
	if after > 0 && first+uintptr(len(slice)) <= segments[after-1].end() {
		return segments[after-1]
	}
	return nil
}
