package samples

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// patience is the time limit for a program that should succeed.
const patience = "5m"

// runPair runs a pair that must succeed and leave no file.
func runPair(t *testing.T, p pair.Pair, o pair.Options) pair.Result {
	t.Helper()
	o.Bin, o.Scratch = cmp.Or(o.Bin, bin), t.TempDir()
	o.RequesterArgs = append([]string{"-timeout", patience, "-connect-timeout", patience}, o.RequesterArgs...)
	o.ResponderArgs = append([]string{"-timeout", patience, "-connect-timeout", patience}, o.ResponderArgs...)
	result, err := pair.Run(t.Context(), p, o)
	require.NoError(t, err)
	require.NoError(t, result.Verify(), "%s", report(result))
	assert.Empty(t, list(t, o.Scratch), "left behind")
	return result
}

func report(r pair.Result) string {
	return fmt.Sprintf("%+v\n%s%s\n%+v\n%s%s", r.Requester.Command, r.Requester.Stdout, r.Requester.Stderr,
		r.Responder.Command, r.Responder.Stdout, r.Responder.Stderr)
}

// list returns the names of the files in a folder.
func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPairs(t *testing.T) {
	for _, p := range pair.Samples() {
		for _, way := range pair.Ways() {
			t.Run(fmt.Sprintf("%s/%s", p.Requester, way), func(t *testing.T) {
				t.Parallel()
				runPair(t, p, pair.Options{Way: way})
			})
		}
		if raceDetector && slices.Contains(raced, p.Requester) {
			t.Run(p.Requester+"/race detector", func(t *testing.T) {
				t.Parallel()
				runPair(t, p, pair.Options{Way: pair.TCP, Bin: filepath.Join(bin, raceBin)})
			})
		}
	}
}

func TestNumberOfConnections(t *testing.T) {
	for n := 1; n <= 8; n++ {
		p := byName(t, "rdma_multi_conn_send")
		p.Messages = n
		args := []string{"-nc", fmt.Sprint(n)}
		result := runPair(t, p, pair.Options{Way: pair.Dir, RequesterArgs: args, ResponderArgs: args})
		for i := range n {
			assert.Contains(t, result.Responder.Stdout, fmt.Sprintf("received on connection %d: ", i))
		}
	}
}

func byName(t *testing.T, requester string) pair.Pair {
	t.Helper()
	for _, p := range pair.Samples() {
		if p.Requester == requester {
			return p
		}
	}
	require.Failf(t, "no such pair", "%s", requester)
	return pair.Pair{}
}

// The values of flags take effect.
func TestValues(t *testing.T) {
	args := func(list ...string) []string { return list }
	tests := []struct {
		requester                string
		toRequester, toResponder []string
		inRequester, inResponder string
	}{
		{"rdma_send", args("-s", "ein Gruß"), nil, `"ein Gruß" (9 bytes`, `received: "ein Gruß" (9 bytes`},
		{"rdma_send", args("--send-string", "x"), nil, `"x" (1 bytes`, `received: "x"`},
		{"rdma_read", nil, args("-read-string=abc"), `read: "abc"`, `offered: "abc"`},
		{"rdma_write", args("-write-string", "abc"), nil, `written: "abc"`, `was written: "abc"`},
		{"rdma_write_immediate", args("-i", "0xffffffff"), nil, "immediate 0xffffffff", "immediate 0xffffffff"},
		{"rdma_send_immediate", args("-immediate", "7"), nil, "immediate 0x00000007", "immediate 0x00000007"},
		{"rdma_atomic_cmp_swp", args("-compare", "40", "-swap", "42"), args("-value", "40"), "found 40, expected 40: swapped true", "after: 42 "},
		{"rdma_atomic_cmp_swp", args("-compare", "41", "-swap", "42"), args("-value", "40"), "found 40, expected 41: swapped false", "after: 40 "},
		{"rdma_atomic_fetch_add", args("-add", "100"), args("-value", "18446744073709551615"), "found 18446744073709551615, added 100", "after: 799 "},
	}
	for _, test := range tests {
		name := test.requester
		if name != "rdma_send" && name != "rdma_send_immediate" {
			name += "_requester"
		}
		r := runPair(t, byName(t, name), pair.Options{Way: pair.Dir, RequesterArgs: test.toRequester, ResponderArgs: test.toResponder})
		assert.Contains(t, r.Requester.Stdout, test.inRequester)
		assert.Contains(t, r.Responder.Stdout, test.inResponder)
	}
}
