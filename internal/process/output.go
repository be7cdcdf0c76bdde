package process

import (
	"bytes"
	"sync"
)

// MaxOutput is how many bytes an Output keeps at least.
const MaxOutput = 1 << 20

// Output keeps the end of what a program prints. It may be read while the program writes. Methods
// that read take nil for an empty Output.
type Output struct {
	mu     sync.Mutex
	text   []byte
	cut    bool          // the beginning was dropped
	change chan struct{} // closed by the next Write
}

// Write adds to the output.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	if len(o.text) > 2*MaxOutput {
		o.text = append(o.text[:0], o.text[len(o.text)-MaxOutput:]...)
		o.cut = true
	}
	if o.change != nil {
		close(o.change)
		o.change = nil
	}
	return len(b), nil
}

// String returns the output, or its end if it was long.
func (o *Output) String() string {
	if o == nil {
		return ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// Cut reports whether the beginning of the output is missing.
func (o *Output) Cut() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cut
}

func (o *Output) contains(text string) bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Contains(o.text, []byte(text))
}

// changed returns a channel that the next Write closes.
func (o *Output) changed() <-chan struct{} {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.change == nil {
		o.change = make(chan struct{})
	}
	return o.change
}
