// Package output keeps the error of a program's output, so that a program whose output went
// nowhere does not end as if it had done its work.
package output

import (
	"fmt"
	"io"
	"sync"
)

// Writer writes to another, and keeps the first error. Its methods may be called from any
// goroutine.
type Writer struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

// New makes a writer to w, the standard output as a rule. A Writer is returned as it is.
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

// Err is the first error, or nil.
func (o *Writer) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("not all of the output could be written: %w", o.err)
}
