package link

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Single messages are received one by one, streams of them together.
func TestHowManyMessagesAreAskedFor(t *testing.T) {
	r := receiver{want: 1}
	for i, step := range []struct{ count, want int }{
		{0, 1}, {1, receiveMessages}, {0, 1}, {1, receiveMessages}, {0, 1}, // alone
		{1, receiveMessages}, {receiveMessages, receiveMessages}, {3, receiveMessages}, {0, receiveMessages}, // a stream
		{0, receiveMessages}, {2, receiveMessages}, {0, receiveMessages},
		{1, receiveMessages}, {0, 1}, {0, 1}, // alone again
	} {
		r.count = step.count
		r.setWant()
		assert.Equal(t, step.want, r.want, "after step %d", i)
	}
}
