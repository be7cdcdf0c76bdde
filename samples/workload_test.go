package samples

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
)

// workload is the pair of the workload program with that name.
func workload(t *testing.T, name string) pair.Pair {
	t.Helper()
	for _, p := range pair.Workloads() {
		if p.Name == name {
			return p
		}
	}
	require.Failf(t, "no such workload", "%s", name)
	return pair.Pair{}
}

// Every operation with data of every shape: from no data to more than one task moves,
// scattered, at a small path MTU. Short: more than 8 MiB with sends alone.
func TestShapes(t *testing.T) {
	const message = 8 << 20 // the most of one task that takes a receive
	for _, p := range pair.Workloads() {
		for _, size := range []int{0, 1, 15, 16, 255, 100_001, message, 2*message + 5} {
			for _, sge := range []int{1, 3} {
				if p.Values && (size > 0 || sge > 1) || !p.Values && sge > 1 != (size > 15) {
					continue
				}
				if testing.Short() && (size == message || size > message && !strings.Contains(p.Name, "send")) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%d bytes/%d buffers", p.Name, size, sge), func(t *testing.T) {
					t.Parallel()
					args := []string{"-mtu", "512"}
					r := runPair(t, p, pair.Options{Way: pair.Dir, Size: size, SGE: sge, RequesterArgs: args, ResponderArgs: args})
					if size > message && strings.Contains(p.Name, "send") {
						assert.Contains(t, r.Requester.Stderr, "16777221 bytes are more than the 8388608 of one task: there are 3 tasks")
						assert.Contains(t, r.Responder.Stderr, "16777221 bytes are more than the 8388608 of one task: there are 3 tasks")
					}
				})
			}
		}
	}
}

// Every operation that moves data does so over several connections, each of which has
// data of its own, also over a bad network.
func TestConnections(t *testing.T) {
	for _, p := range pair.Workloads() {
		if p.Values || p.Connections > 0 {
			continue
		}
		p.Connections, p.Messages = 8, 8
		for _, device := range []string{"soft-lo", "soft-lo?loss=0.02&duplicate=0.1&reorder=0.1&corrupt=0.02"} {
			t.Run(p.Name+"/"+device, func(t *testing.T) {
				t.Parallel()
				args := []string{"-d", device}
				runPair(t, p, pair.Options{Way: pair.TCP, Size: 70_001, SGE: 16, RequesterArgs: args, ResponderArgs: args})
			})
		}
	}
}

func TestWrongWorkload(t *testing.T) {
	for args, texts := range map[string][]string{
		"":                             {"-op is missing"},
		"-op write":                    {"-as is missing"},
		"-op copy -as requester":       {`"copy"`, "want one of read, write, write_immediate, send, send_immediate, compare_and_swap, fetch_and_add, sync_event"},
		"-op write -as server":         {`"server"`, "requester, responder"},
		"-op write -as requester text": {`"text"`},
		"-size -1":                     {"from 0"},
		"-size 1073741825":             {"to 1073741824"},
		"-sge 0":                       {"from 1 to 16"},
		"-sge 17":                      {"from 1 to 16"},
		"-nc 0":                        {"from 1 to 8"},
		"-nc 9":                        {"from 1 to 8"},
		"-g -1":                        {"from 0"},
		"-mtu 1500":                    {"256, 512, 1024, 2048 or 4096"},
		"-connect-timeout 0s":          {"want a time above zero"},
		"-ack-timeout never":           {"want a time above zero"},
		"-l loud":                      {"debug"},
		"-op fetch_and_add -as requester -size 8":  {"fetch_and_add", "-size"},
		"-op compare_and_swap -as responder -nc 2": {"compare_and_swap", "-nc"},
	} {
		t.Run(args, func(t *testing.T) {
			one(t, t.TempDir(), 2, "workload", strings.Fields(args), append(texts, "-h lists the flags")...)
		})
	}
	one(t, t.TempDir(), 1, "workload", []string{"-op", "write", "-as", "requester", "-oob", "pigeon"}, `"pigeon"`)
}

// The two ends have to agree about the size and the connections; a message that is
// longer than its receive fails at both.
func TestWorkloadsThatDoNotFit(t *testing.T) {
	for _, test := range []struct{ name, toRequester, toResponder, requesterSays, responderSays string }{
		{"send", "-size 5000", "-size 4096", "remote invalid request", "local length error"},
		{"send", "-size 4096", "-size 5000", "", "has 4096 bytes, want 5000"},
		{"write", "-size 5000", "-size 4096", "has 4096 bytes, want 5000", "the peer has failed"},
		{"read", "-size 4096", "-size 5000", "has 5000 bytes, want 4096", "the peer has failed"},
		{"write", "-nc 3", "-nc 4", "offers 4 connections, but this program offers 3", "offers 3 connections, but this program offers 4"},
	} {
		t.Run(fmt.Sprintf("%s, %s, %s", test.name, test.toRequester, test.toResponder), func(t *testing.T) {
			t.Parallel()
			p := workload(t, test.name)
			if test.requesterSays == "" { // its work is done
				o := pair.Options{Bin: bin, Scratch: t.TempDir(), Way: pair.Dir,
					RequesterArgs: strings.Fields(test.toRequester), ResponderArgs: append(strings.Fields(test.toResponder), "-timeout", patience)}
				r, err := pair.Run(t.Context(), p, o)
				require.NoError(t, err)
				assert.Equal(t, 1, r.Responder.Code, "%s", report(r))
				assert.Contains(t, r.Responder.Stderr, test.responderSays)
				return
			}
			failAtBothEnds(t, p, pair.Options{RequesterArgs: strings.Fields(test.toRequester), ResponderArgs: strings.Fields(test.toResponder)},
				test.requesterSays, test.responderSays)
		})
	}
}

// Either end of every operation takes -ack-timeout: the first one is longer than any
// can be.
func TestAckTimeout(t *testing.T) {
	for _, p := range pair.Workloads() {
		for _, as := range []string{"requester", "responder"} {
			one(t, t.TempDir(), 1, "workload", []string{"-op", p.Operation, "-as", as, "-ack-timeout", "24h"}, "AckTimeout is 24h0m0s")
		}
		// A process that has no processor for seconds is not taken for gone.
		args := []string{"-ack-timeout", "500ms", "-d", "soft-lo?loss=0.01"}
		runPair(t, p, pair.Options{Way: pair.Dir, Size: 20_000, RequesterArgs: args, ResponderArgs: args})
	}
}

// A program does not wait forever for a peer that ended between the exchange of descriptors and
// the connection, or that never started.
func TestTimeouts(t *testing.T) {
	for _, p := range pair.Workloads() {
		for i, as := range []string{"requester", "responder"} {
			t.Run(p.Name+"/"+as, func(t *testing.T) {
				t.Parallel()
				o := pair.Options{Bin: bin, Scratch: t.TempDir(), Way: pair.Dir,
					RequesterArgs: []string{"-timeout", patience, "-l", "error"}, ResponderArgs: []string{"-timeout", patience, "-l", "error"}}
				requester, responder, err := o.Commands(p)
				require.NoError(t, err)
				ours, theirs := requester, responder
				if i == 1 {
					ours, theirs = responder, requester
				}
				lonely := start(t, append(ours, "-timeout", "50ms")...)
				assert.Equal(t, 1, lonely.code())
				assert.Equal(t, "workload: gave up after 50ms (-timeout) while waiting for the descriptors of the other end", lonely.lastLine())

				peer := start(t, append(theirs, "-d", "soft-lo?loss=1", "-l", "info", "-connect-timeout", patience)...)
				survivor := start(t, append(ours, "-d", "soft-lo?loss=1", "-connect-timeout", "50ms")...)
				peer.await("waiting for the connection")
				peer.signal(os.Kill)
				peer.code()
				assert.Equal(t, 1, survivor.code())
				assert.Contains(t, survivor.lastLine(), "gave up after 50ms (-connect-timeout) while waiting for the connection to the other end")
				assert.Empty(t, survivor.stdout.String())
			})
		}
	}
}
