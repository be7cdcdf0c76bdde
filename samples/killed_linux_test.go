package samples

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/test/soak"
)

// ends are the devices of a pair.
type ends struct {
	requester, responder string
	where                func(device string) (prefix []string)
	sizes                []int // of what is moved
}

// killResult is the result of one round: one end was killed, and the other survived.
type killResult struct {
	name     string
	took     time.Duration // until the survivor had ended
	finished bool          // it had done its work
	early    bool          // it had ended before the other was killed
	lastLine string        // of the survivor
}

// killResults are the results for one pair of devices.
type killResults struct {
	mu   sync.Mutex
	list []killResult
}

func (k *killResults) add(one killResult) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, one)
}

// report prints how long survivors took to end. They should end within 10 seconds, but no test
// fails for that, because the machine may be busy.
func (k *killResults) report(t *testing.T) {
	var took []time.Duration
	finished, early := 0, 0
	for _, one := range k.list {
		switch {
		case one.early:
			early++
		case one.finished:
			finished++
		default:
			took = append(took, one.took)
			if one.took > 10*time.Second {
				t.Logf("slow: %v took %v: %s", one.name, one.took.Round(time.Millisecond), one.lastLine)
			}
		}
	}
	if len(took) == 0 {
		t.Logf("%d killed, and no survivor was left with its work", len(k.list))
		return
	}
	slices.Sort(took)
	at := func(share float64) time.Duration {
		return took[int(share*float64(len(took)-1))].Round(time.Millisecond)
	}
	over := 0
	for _, d := range took {
		if d > 10*time.Second {
			over++
		}
	}
	t.Logf("%d killed: %d survivors had ended, %d had done their work, %d failed after min %v, median %v, 90 %% %v, max %v; %d after more than 10 s",
		len(k.list), early, finished, len(took), at(0), at(0.5), at(0.9), at(1), over)
}

// dataLine is what a program prints of each piece of data that was moved.
var dataLine = regexp.MustCompile(`\((\d+) bytes, CRC-32C [0-9a-f]{8}\)`)

// killOne runs a pair, all settings at their defaults, and kills one end at a random
// moment after the exchange of descriptors. The other must end, with an error unless its work
// is done.
func killOne(t *testing.T, p pair.Pair, requesterDies bool, e ends, rng *rand.Rand, k *killResults) {
	o := pair.Options{Bin: bin, Scratch: t.TempDir(), Way: pair.Dir, RequesterPrefix: e.where(e.requester), ResponderPrefix: e.where(e.responder),
		RequesterArgs: []string{"-d", e.requester}, ResponderArgs: []string{"-d", e.responder}}
	o.Size = e.sizes[rng.IntN(len(e.sizes))]
	requesterCommand, responderCommand, err := o.Commands(p)
	require.NoError(t, err)
	both := []*process{start(t, requesterCommand...), start(t, responderCommand...)}
	if !requesterDies {
		both[0], both[1] = both[1], both[0]
	}
	victim, other := both[0], both[1]
	ended, gone := make(chan struct{}), make(chan struct{})
	for p, end := range map[*process]chan struct{}{victim: gone, other: ended} {
		go func() {
			_ = p.cmd.Wait()
			close(end)
		}()
	}

	// Both know each other's descriptors when one of them waits for the connection.
	// Most of what follows takes milliseconds.
	moment := []string{"waiting for the connection", "the context is Running"}[rng.IntN(2)]
	select {
	case <-victim.stderr.watch(moment):
	case <-gone:
	case <-time.After(5 * time.Minute):
		require.Fail(t, "the ends have not exchanged descriptors", "%s\n%s", victim.stderr.String(), other.stderr.String())
	}
	within := []time.Duration{1, 2 * time.Millisecond, 20 * time.Millisecond, 500 * time.Millisecond}[rng.IntN(4)]
	time.Sleep(time.Duration(rng.Int64N(int64(within))))
	if rng.IntN(2) == 0 { // stop it first, so that the other waits for it
		_ = victim.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
	}
	early := false
	select {
	case <-ended:
		early = true
	default:
	}
	before := time.Now()
	_ = victim.cmd.Process.Kill() // it may have ended
	<-gone
	hung := time.AfterFunc(2*time.Minute, func() { _ = other.cmd.Process.Kill() })
	defer hung.Stop()
	<-ended
	one := killResult{name: t.Name(), took: time.Since(before), early: early, lastLine: other.lastLine()}
	stderr := other.stderr.String()
	assert.NotContains(t, stderr, "goroutine ", "a panic")
	switch code := other.cmd.ProcessState.ExitCode(); code {
	case 0:
		one.finished = true
		assert.Len(t, dataLine.FindAllString(other.stdout.String(), -1), p.Messages, "it succeeded: %s%s", other.stdout.String(), stderr)
	case 1:
		assert.True(t, strings.HasPrefix(one.lastLine, "workload: "), "%s", stderr)
		t.Logf("size %d: after %v: %s", o.Size, one.took.Round(time.Millisecond), one.lastLine)
	default:
		assert.Fail(t, "the survivor hangs, or was killed", "code %d after %v\nsurvivor %v\n%s\nvictim\n%s", code, one.took,
			other.cmd.Args, stderr, victim.stderr.String())
	}
	k.add(one)
}

// killEither kills ends of all operations in turn.
func killEither(t *testing.T, e ends, rounds int, parallel bool) {
	var k killResults
	seed := rand.Uint64()
	first := rand.IntN(2 * len(pair.Workloads()))
	t.Run("rounds", func(t *testing.T) {
		for i := range rounds {
			n := first + i
			p := pair.Workloads()[n/2%len(pair.Workloads())]
			requesterDies := n%2 == 0
			dies := map[bool]string{true: "requester", false: "responder"}[requesterDies]
			t.Run(fmt.Sprintf("%d, %s, the %s dies", i, p.Name, dies), func(t *testing.T) {
				if parallel {
					t.Parallel()
				}
				killOne(t, p, requesterDies, e, rand.New(rand.NewPCG(seed, uint64(i))), &k)
			})
		}
	})
	k.report(t)
}

// If either end of a pair is killed, at any moment, the other ends, with an error unless its
// work is done.
func TestSoakPeerKilled(t *testing.T) {
	sizes := []int{0, 1 << 20, 256 << 20}
	if !soak.Full(t) {
		sizes[2] = 32 << 20 // filling it takes as long as everything else
	}
	killEither(t, ends{"soft-lo", "soft-lo", func(string) []string { return nil }, sizes}, soak.Rounds(t, 18, 108), true)
}

// guestSizes take as long in the guest, which is slow and has a gigabyte of memory.
var guestSizes = []int{0, 100_000, 32 << 20}

// As TestSoakPeerKilled, with the kernel's driver at one end, or both.
func TestGuestSoakPeerKilled(t *testing.T) {
	requireGuest(t)
	sizes := guestSizes
	if !soak.Full(t) {
		sizes = []int{0, 100_000, 4 << 20}
	}
	for _, e := range []ends{{"soft-v1", "rxe0", commandPrefix, sizes}, {"rxe0", "soft-v1", commandPrefix, sizes}, {"rxe0", "rxe0", commandPrefix, sizes}} {
		t.Run(e.requester+" to "+e.responder, func(t *testing.T) {
			killEither(t, e, soak.Rounds(t, 1, 108), false)
		})
	}
}
