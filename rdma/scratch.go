package rdma

import (
	"errors"
	"slices"

	"github.com/verbena-rdma/verbena/rdma/internal/buffers"
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
	n int
	buffers.Buffers
}

const wordSize = 8

// add makes words part of the scratch memory, unless it fails.
func (m *scratch) add(w *words) error {
	if m.isOpen {
		if err := w.open(m.core.set.PD); err != nil {
			return errors.Join(err, w.Close(false))
		}
	}
	m.all = append(m.all, w)
	return nil
}

// remove undoes add, if that was called.
func (m *scratch) remove(w *words) error {
	m.all = slices.DeleteFunc(m.all, func(other *words) bool { return other == w })
	return w.Close(false)
}

// open implements part.
func (m *scratch) open() error {
	m.isOpen = true
	for _, w := range m.all {
		if err := w.open(m.core.set.PD); err != nil {
			return err
		}
	}
	return nil
}

func (w *words) open(pd verbs.PD) error { return w.Open(pd, w.n, wordSize, wordSize) }

// bytes is a word.
func (w *words) bytes(i int) []byte { return w.Bytes(i, wordSize) }

// close implements part.
func (m *scratch) close() error {
	m.isOpen = false
	var errs []error
	for _, w := range m.all {
		errs = append(errs, w.Close(m.core.kept != nil))
	}
	return errors.Join(errs...)
}
