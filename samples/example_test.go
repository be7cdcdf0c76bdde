package samples

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/internal/pair"
	"github.com/verbena-rdma/verbena/test/soak"
)

// runExample runs a server and its client, which must succeed.
func runExample(t *testing.T, e pair.Example, o pair.Options) pair.Result {
	t.Helper()
	o.Bin = bin
	o.RequesterArgs = append([]string{"-timeout", patience}, o.RequesterArgs...)
	o.ResponderArgs = append([]string{"-timeout", patience}, o.ResponderArgs...)
	result, err := e.Run(t.Context(), o)
	require.NoError(t, err, "%s", report(result))
	return result
}

func exampleOf(t *testing.T, server string) pair.Example {
	t.Helper()
	for _, e := range pair.Examples() {
		if e.Server == server {
			return e
		}
	}
	require.FailNow(t, "no such example", server)
	return pair.Example{}
}

func TestExamples(t *testing.T) {
	for _, e := range pair.Examples() {
		t.Run(e.Server, func(t *testing.T) {
			t.Parallel()
			runExample(t, e, pair.Options{})
		})
	}
}

// The programs of the EFA documents, with lost and reordered packets.
func TestSoakEFAExamples(t *testing.T) {
	for range soak.Rounds(t, 3, 1000) {
		dev := fmt.Sprintf("soft-lo?loss=0.05&seed=%d&srd_seed=%d", rand.Uint32(), rand.Uint32())
		for _, server := range []string{"efa_rdma_write_server", "write_cpu_server"} {
			args := []string{"-d", dev}
			r := runExample(t, exampleOf(t, server), pair.Options{RequesterArgs: args, ResponderArgs: args})
			if server == "efa_rdma_write_server" {
				assert.Contains(t, r.Responder.Stdout, `the message: "Hello from the client!" (22 bytes`, dev)
			} else {
				assert.Contains(t, r.Requester.Stdout, "the data is correct", dev)
			}
		}
	}
}

func TestWriteCPUPages(t *testing.T) {
	server := start(t, "write_cpu_server", "-timeout", patience)
	server.await("\n")
	address, _, _ := strings.Cut(server.stdout.String(), "\n")
	require.Len(t, address, 64)
	for _, pages := range [][]string{{}, {"1", "1"}, {"4096", "300"}, {"16777216", "1"}, {"1000001", "16"}} {
		client := start(t, append([]string{"write_cpu_client", "-timeout", patience, address}, pages...)...)
		succeed(t, client)
		assert.Contains(t, client.stdout.String(), "the data is correct")
	}
	for _, wrong := range [][]string{{}, {"xyz"}, {address[:62]}, {strings.Repeat("0", 64)}, {address, "5"}, {address, "0", "1"}, {address, "4096", "4097"}, {address, "1", "100000"}} {
		client := start(t, append([]string{"write_cpu_client"}, wrong...)...)
		assert.Equal(t, 1, client.code(), "%v", wrong)
		assert.Empty(t, client.stdout.String())
	}
	server.signal(os.Interrupt)
	assert.Equal(t, 130, server.code())
}
