package sample

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/oob"
)

// The peer has less time to connect where both programs have just met.
func TestConnectTimeoutByWay(t *testing.T) {
	for way, c := range map[string]struct {
		args []string
		want time.Duration
	}{
		"dir":   {[]string{"-oob", "dir:" + t.TempDir()}, defaultConnectTimeout},
		"tcp":   {[]string{"-oob", "tcp:127.0.0.1:1"}, defaultConnectTimeout},
		"stdio": {[]string{"-oob", "stdio"}, manualConnectTimeout},
		"files": {[]string{"-ld", "a", "-re", "b"}, manualConnectTimeout},
		"given": {[]string{"-oob", "stdio", "-connect-timeout", "3s"}, 3 * time.Second},
	} {
		s, err := parse(Program{Name: "sender", Role: Requester, Peer: "receiver"}, c.args, stdio{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
		require.NoError(t, err, way)
		assert.Equal(t, c.want, s.ConnectTimeout, way)
	}
}

// A program takes from its peer what it needs, and nothing else.
func TestExpects(t *testing.T) {
	for m, want := range map[Memory]oob.Expect{
		NoMemory: {}, ExportsMemory: {}, ExportsEvent: {}, ImportsMemory: {Maps: 1}, ImportsEvent: {Events: 1},
	} {
		assert.Equal(t, &want, m.expects(), m)
	}
}
