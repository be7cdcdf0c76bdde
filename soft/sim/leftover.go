package sim

import (
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
)

// inBubbleOf is [synctest.Test]. That panics if goroutines are left in the bubble that nothing
// lets go on, and the panic would end all tests of the binary. inBubbleOf returns the stacks of
// these goroutines instead; they stay as they are.
func inBubbleOf(t *testing.T, f func(t *testing.T)) (left []string) {
	bubble := ""
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		err, ok := p.(error)
		if !ok || bubble == "" || !strings.HasPrefix(err.Error(), "deadlock: ") {
			panic(p)
		}
		for stack := range strings.SplitSeq(stacks(true), "\n\n") {
			if bubbleOf(stack) == bubble {
				left = append(left, stack)
			}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		bubble = bubbleOf(stacks(false))
		f(t)
	})
	return nil
}

// reportLeft makes a test fail if goroutines are left of its simulation.
func reportLeft(t testing.TB, seed uint64, left []string) {
	if len(left) > 0 {
		t.Errorf("sim: seed %d: %d goroutines of the test still wait when it has ended; end those that a program starts before it returns, or when its context ends:\n\n%s",
			seed, len(left), strings.Join(left, "\n\n"))
	}
}

// stacks returns the stack of this goroutine, or of all.
func stacks(all bool) string {
	for buf := make([]byte, 16<<10); ; buf = make([]byte, 2*len(buf)) {
		if n := runtime.Stack(buf, all); n < len(buf) {
			return string(buf[:n])
		}
	}
}

var bubbleInHeader = regexp.MustCompile(`^goroutine \d+ .*\[.*synctest bubble (\d+)`)

// bubbleOf returns the number of the bubble that a goroutine is in, from its stack.
func bubbleOf(stack string) string {
	header, _, _ := strings.Cut(stack, "\n")
	if m := bubbleInHeader.FindStringSubmatch(header); m != nil {
		return m[1]
	}
	return ""
}
