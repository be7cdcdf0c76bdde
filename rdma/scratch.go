package rdma

import (
	"errors"
	"slices"

	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/verbs"
)

// scratch is the part of a context that has memory for single words of 8 bytes: those that
// signals of connections send, and the operands and results of tasks.
type scratch struct {
	passive
	core    *core
	signals words // by slot of the connection
	all     []*words
	isOpen  bool
}

// words are words of the scratch memory.
type words struct {
	n     int
	mem   *mmap.Map // nil: not open
	first verbs.SGE
}

// add makes words part of the scratch memory, unless it fails.
func (m *scratch) add(w *words) error {
	if m.isOpen {
		if err := w.open(m.core); err != nil {
			return errors.Join(err, w.close(m.core))
		}
	}
	m.all = append(m.all, w)
	return nil
}

// remove undoes add, if that was called.
func (m *scratch) remove(w *words) error {
	m.all = slices.DeleteFunc(m.all, func(other *words) bool { return other == w })
	return w.close(m.core)
}

// open implements part.
func (m *scratch) open() error {
	m.isOpen = true
	for _, w := range m.all {
		if err := w.open(m.core); err != nil {
			return err
		}
	}
	return nil
}

func (w *words) open(c *core) (err error) {
	if w.n == 0 {
		return nil
	}
	if w.mem, err = mmap.New(c.dev, mmap.Config{Size: 8 * w.n, Permissions: mmap.LocalReadWrite, PD: c.set.PD}); err != nil {
		return err
	}
	w.first = verbs.SGE{Addr: w.mem.Addr(), Length: 8}
	w.first.LKey, err = w.mem.LKey(c.set.PD)
	return err
}

func (w *words) close(c *core) error {
	err := c.closeMemory(w.mem)
	w.mem = nil
	return err
}

// bytes is a word.
func (w *words) bytes(i int) []byte { return w.mem.Bytes()[8*i : 8*i+8] }

// entry is the entry of a list of buffers for a word.
func (w *words) entry(i int) verbs.SGE {
	e := w.first
	e.Addr += uint64(8 * i)
	return e
}

// close implements part.
func (m *scratch) close() error {
	m.isOpen = false
	var errs []error
	for _, w := range m.all {
		errs = append(errs, w.close(m.core))
	}
	return errors.Join(errs...)
}
