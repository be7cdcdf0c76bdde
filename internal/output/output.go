// Package output keeps the first error of a program's output, so that a program whose output
// was lost does not report success.
package output

import (
	"fmt"
	"io"
	"sync"
)

// Writer writes to another writer, and keeps the first error. Its methods may be called from
// any goroutine.
type Writer struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

// New returns a Writer to w, usually the standard output. A Writer is returned unchanged.
func New(w io.Writer) *Writer {
	if o, ok := w.(*Writer); ok {
		return o
	}
	return &Writer{w: w}
}

// Write implements io.Writer.
func (o *Writer) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.w.Write(b)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// Err returns the first error, or nil.
func (o *Writer) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("not all of the output could be written: %w", o.err)
}
