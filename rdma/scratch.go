package rdma

import (
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// scratch is the part of a context that has memory for single words: those that signals of
// connections send, by slot, and then the operands of tasks.
type scratch struct {
	passive
	*mmap.Map // nil: not open
	core      *core
	words     int       // that atomics and sync events need
	first     verbs.SGE // the entry of a list of buffers for the first word
}

// open implements part.
func (m *scratch) open() (err error) {
	s := m.core.set
	m.Map, err = mmap.New(m.core.dev, mmap.Config{
		Size: 8 * (s.MaxConnections + m.words), Permissions: mmap.LocalReadWrite, PD: s.PD,
	})
	if err != nil {
		return err
	}
	m.first = verbs.SGE{Addr: m.Addr(), Length: 8}
	m.first.LKey, err = m.LKey(s.PD)
	return err
}

// word returns the entry of a list of buffers for the word at an offset.
func (m *scratch) word(off int) verbs.SGE {
	sg := m.first
	sg.Addr += uint64(off)
	return sg
}

// close implements part.
func (m *scratch) close() error {
	err := m.core.closeMemory(m.Map)
	m.Map = nil
	return err
}
